// SPDX-License-Identifier: Apache-2.0
//
// A library of its own, libnvrtc.so.13: torch loads that and looks its functions up by handle.
#include <cstddef>

#include <nvrtc.h>

namespace {

// Every program is empty, and every kernel in it has this name.
char program_mark;
constexpr const char* kKernelName = "compiled_kernel";

nvrtcResult no_text(std::size_t* size_bytes) {
  *size_bytes = 1;
  return NVRTC_SUCCESS;
}

nvrtcResult no_text(char* text) {
  *text = '\0';
  return NVRTC_SUCCESS;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "NVRTC_ERROR";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int, const char* const*,
                               const char* const*) {
  *program = reinterpret_cast<nvrtcProgram>(&program_mark);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  *program = nullptr;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_SUCCESS; }
nvrtcResult nvrtcAddNameExpression(nvrtcProgram, const char*) { return NVRTC_SUCCESS; }

nvrtcResult nvrtcGetLoweredName(nvrtcProgram, const char*, const char** name) {
  *name = kKernelName;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram, std::size_t* size_bytes) { return no_text(size_bytes); }
nvrtcResult nvrtcGetPTX(nvrtcProgram, char* text) { return no_text(text); }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t* size_bytes) { return no_text(size_bytes); }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* text) { return no_text(text); }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t* size_bytes) { return no_text(size_bytes); }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* text) { return no_text(text); }

}  // extern "C"
