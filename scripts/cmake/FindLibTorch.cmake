# SPDX-License-Identifier: Apache-2.0
#
# Finds the LibTorch inside the Python environment's torch package, without running torch and without torch's own
# package config, which insists on a CUDA toolkit where the wheel was built for CUDA.
#
# In: Python3_EXECUTABLE (else the first python3 on PATH). Out: LibTorch_VERSION, target LibTorch::LibTorch; where torch
# was built for CUDA, LibTorch_HAS_CUDA and the target LibTorch::Cuda: its CUDA libraries, CUDA's runtime and the headers
# of CUDA and CUPTI, which are in the nvidia packages beside it.
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

if(LibTorch_FOUND AND EXISTS "${LibTorch_DIR}/lib/libc10_cuda.so")
  set(LibTorch_HAS_CUDA ON)
  file(GLOB LibTorch_CUDA_ROOTS "${LibTorch_DIR}/../nvidia/cu[0-9]*")
  find_path(LibTorch_CUDA_INCLUDE_DIR cupti.h HINTS ${LibTorch_CUDA_ROOTS} PATH_SUFFIXES include PATHS /usr/local/cuda)
  file(GLOB LibTorch_CUDART_CANDIDATES "${LibTorch_CUDA_INCLUDE_DIR}/../lib*/libcudart.so.[0-9]*")
  if(LibTorch_CUDART_CANDIDATES)
    list(GET LibTorch_CUDART_CANDIDATES 0 LibTorch_CUDART)
  endif()
  # What these include comes in packages of its own, which torch does without.
  foreach(needed crt/host_defines.h nv/target)
    if(LibTorch_CUDA_INCLUDE_DIR AND NOT EXISTS "${LibTorch_CUDA_INCLUDE_DIR}/${needed}")
      message(STATUS "LibTorch: no ${needed} in ${LibTorch_CUDA_INCLUDE_DIR}; it is in the PyPI package nvidia-cuda-crt or "
        "nvidia-cuda-cccl")
      set(LibTorch_CUDA_INCLUDE_DIR NOTFOUND)
    endif()
  endforeach()
  if(LibTorch_CUDA_INCLUDE_DIR AND LibTorch_CUDART AND NOT TARGET LibTorch::Cuda)
    add_library(LibTorch::Cuda INTERFACE IMPORTED)
    target_include_directories(LibTorch::Cuda SYSTEM INTERFACE "${LibTorch_CUDA_INCLUDE_DIR}")
    target_link_libraries(LibTorch::Cuda INTERFACE LibTorch::LibTorch
      "${LibTorch_DIR}/lib/libtorch_cuda.so" "${LibTorch_DIR}/lib/libc10_cuda.so" "${LibTorch_CUDART}")
  endif()
endif()
