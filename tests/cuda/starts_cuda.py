# SPDX-License-Identifier: Apache-2.0
"""A library that uses CUDA when it is imported."""

import torch

TABLE = torch.arange(1000, device="cuda")
