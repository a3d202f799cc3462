# SPDX-License-Identifier: Apache-2.0
"""The page of `stowage report`: what it shows, its words, and its HTML, style and script. Needs no torch."""
