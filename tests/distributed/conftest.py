# SPDX-License-Identifier: Apache-2.0
import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("stowage") is None:  # not installed: the package's source, with STOWAGE_LIBRARY
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
