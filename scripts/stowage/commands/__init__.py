# SPDX-License-Identifier: Apache-2.0
"""What the `stowage` command does, by subject. Needs no torch but for the script that `verify` runs."""
