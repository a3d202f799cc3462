// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <cuda.h>
#include <dlfcn.h>

#include "tests/drycuda/device.h"
#include "tests/drycuda/kernels.h"
#include "tests/drycuda/memory.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/settings.h"

namespace drycuda {
namespace {

// The addresses are the contexts.
char contexts[kMaxDevices];
char module_mark;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }

const char* text_of(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return "no error";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case CUDA_ERROR_INVALID_VALUE:
      return "invalid argument";
    default:
      return "unknown error";
  }
}

// Functions are asked for by the name that programs use; the headers give many of them a version.
void* find_function(const char* name) {
  for (const char* version : {"_v3", "_v2", ""}) {
    if (void* const found = dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str())) return found;
  }
  return nullptr;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = text_of(result);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = settings().devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= settings().devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = device_attribute(attribute);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size_bytes, CUdevice) {
  name[std::string(kDeviceName).copy(name, static_cast<std::size_t>(size_bytes) - 1)] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_of(current_device());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) set_current_device(static_cast<int>(reinterpret_cast<char*>(context) - contexts));
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  *function = find_function(name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = find_function(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

CUresult cuModuleLoad(CUmodule* module, const char*) {
  *module = reinterpret_cast<CUmodule>(&module_mark);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void*) { return cuModuleLoad(module, nullptr); }

CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return cuModuleLoad(module, nullptr);
}

// A function is its name.
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(const_cast<char*>(keep_name(name)));
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr* address, std::size_t* size_bytes, CUmodule, const char*) {
  void* place = nullptr;
  cudaGetSymbolAddress(&place, nullptr);
  if (address) *address = reinterpret_cast<CUdeviceptr>(place);
  if (size_bytes) *size_bytes = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_threads,
                                                     std::size_t shared_bytes) {
  *blocks = resident_blocks(block_threads, shared_bytes);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 16;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned, unsigned,
                        unsigned, unsigned, CUstream stream, void**, void**) {
  const cudaError_t error =
      launch(stream, reinterpret_cast<const char*>(function), std::uint64_t{grid_x} * grid_y * grid_z);
  return error == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   CUstream stream, void** arguments) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments,
                        nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction function, void** arguments, void** extra) {
  return cuLaunchKernel(function, configuration->gridDimX, configuration->gridDimY, configuration->gridDimZ,
                        configuration->blockDimX, configuration->blockDimY, configuration->blockDimZ,
                        configuration->sharedMemBytes, configuration->hStream, arguments, extra);
}

}  // extern "C"

}  // namespace drycuda
