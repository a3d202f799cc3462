# SPDX-License-Identifier: Apache-2.0
"""What `stowage explain` computes and says of a run of a graph, and of a step of a loop. Needs no torch."""
