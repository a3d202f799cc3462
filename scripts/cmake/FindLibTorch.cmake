# SPDX-License-Identifier: Apache-2.0
#
# Finds the LibTorch inside the Python environment's torch package, without running torch and without torch's own
# package config, which insists on a CUDA toolkit where the wheel was built for CUDA.
#
# In: Python3_EXECUTABLE (else the first python3 on PATH). Out: LibTorch_VERSION, target LibTorch::LibTorch.
if(NOT Python3_EXECUTABLE AND EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  set(Python3_EXECUTABLE "${PROJECT_SOURCE_DIR}/.venv/bin/python")
endif()
find_package(Python3 COMPONENTS Interpreter QUIET)

execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c
    "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent)"
  OUTPUT_VARIABLE LibTorch_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(EXISTS "${LibTorch_DIR}/version.py")
  file(STRINGS "${LibTorch_DIR}/version.py" LibTorch_VERSION REGEX "^__version__")
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" LibTorch_VERSION "${LibTorch_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_DIR LibTorch_VERSION
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "'${Python3_EXECUTABLE}' has no torch: run scripts/setup, or set Python3_EXECUTABLE")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LibTorch_DIR}/include" "${LibTorch_DIR}/include/torch/csrc/api/include")
  target_link_libraries(LibTorch::LibTorch INTERFACE "${LibTorch_DIR}/lib/libtorch_cpu.so" "${LibTorch_DIR}/lib/libc10.so")
endif()
