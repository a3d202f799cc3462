# SPDX-License-Identifier: Apache-2.0
import importlib.util
import sys
from pathlib import Path

import torch

if importlib.util.find_spec("stowage") is None:  # not installed: the package's source, with STOWAGE_LIBRARY
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

torch.set_num_threads(1)  # threads that wait for each other are slow on a busy machine, and these programs are small
