# SPDX-License-Identifier: Apache-2.0
#
# The dry CUPTI: libdrycupti.so, to be preloaded beside the dry device, and its tests. It takes the SONAME of CUPTI, so
# that torch's libraries get it, and its symbol version, so that they get it without a warning.
set(CUPTI_GENERATED "${CMAKE_CURRENT_BINARY_DIR}/generated/tests/drycuda")
file(MAKE_DIRECTORY "${CUPTI_GENERATED}")
add_custom_command(
  OUTPUT "${CUPTI_GENERATED}/cupti_names.h" "${CUPTI_GENERATED}/cupti_stubs.cpp"
  COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/make_cupti_stubs.py" "${LibTorch_CUDA_INCLUDE_DIR}"
          "${CUPTI_GENERATED}/cupti_names.h" "${CUPTI_GENERATED}/cupti_stubs.cpp"
  DEPENDS "${CMAKE_CURRENT_LIST_DIR}/make_cupti_stubs.py" "${LibTorch_CUDA_INCLUDE_DIR}/cupti_result.h"
  COMMENT "Generating the stubs of the dry CUPTI"
  VERBATIM)

add_library(drycupti SHARED
  cupti.cpp
  cupti_buffers.cpp
  cupti_callbacks.cpp
  cupti_clock.cpp
  cupti_library.cpp
  cupti_observe.cpp
  cupti_records.cpp
  "${CUPTI_GENERATED}/cupti_names.h"
  "${CUPTI_GENERATED}/cupti_stubs.cpp")
target_include_directories(drycupti
  PRIVATE "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_BINARY_DIR}/generated"
  SYSTEM PUBLIC "${LibTorch_CUDA_INCLUDE_DIR}")
target_link_options(drycupti PRIVATE
  "LINKER:-soname,libcupti.so.13" "LINKER:--version-script=${CMAKE_CURRENT_LIST_DIR}/cupti.map")
# What is exported is in cupti.map.
set_target_properties(drycupti PROPERTIES
  CXX_VISIBILITY_PRESET default NO_SONAME ON LINK_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/cupti.map")
target_link_libraries(drycupti PRIVATE stowage_warnings)
# Where the tests, which link it, look for it by its SONAME.
add_custom_command(TARGET drycupti POST_BUILD
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "$<TARGET_FILE_NAME:drycupti>"
          "$<TARGET_FILE_DIR:drycupti>/libcupti.so.13")

stowage_test(drycupti_test ROOM drycuda
  SOURCES cupti_test.cpp cupti_buffers_test.cpp cupti_double.cpp cupti_refusals_test.cpp
  LINK drycupti)
# The dry device of the tests is in the executable, where the library must find it.
set_target_properties(drycupti_test PROPERTIES CXX_VISIBILITY_PRESET default)
