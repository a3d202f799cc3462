# SPDX-License-Identifier: Apache-2.0
"""Reads and explains memory snapshots of torch's CUDA caching allocator, and traces of allocations. Needs no torch."""
