# SPDX-License-Identifier: Apache-2.0
"""Writes what a store holds in the formats of other tools. Needs no torch."""
