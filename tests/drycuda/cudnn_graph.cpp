// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's graph interface: descriptors remember the attributes that they are given, and every operation graph has one
// engine, with nothing to choose and the stated workspace.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include <cudnn.h>

#include "tests/drycuda/library_handle.h"
#include "tests/drycuda/report.h"
#include "tests/drycuda/settings.h"

namespace drycuda {
namespace {

struct Attribute {
  std::int64_t count;
  std::vector<char> bytes;
};

using Descriptor = std::map<cudnnBackendAttributeName_t, Attribute>;

Descriptor& descriptor_of(cudnnBackendDescriptor_t handle) { return *static_cast<Descriptor*>(handle); }

std::size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;  // enumerations, float and int32
  }
}

template <typename Value>
cudnnStatus_t answer(std::int64_t requested, void* values, Value value) {
  if (values && requested > 0) std::memcpy(values, &value, sizeof value);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &descriptor_of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  return drycuda_library_launch(handle, "cudnnBackendExecute") == 0 ? CUDNN_STATUS_SUCCESS
                                                                    : CUDNN_STATUS_EXECUTION_FAILED;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  const auto* const bytes = static_cast<const char*>(values);
  descriptor_of(descriptor)[name] = {count, {bytes, bytes + static_cast<std::size_t>(count) * element_bytes(type)}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t requested, std::int64_t* returned,
                                       void* values) {
  std::int64_t ignored = 0;
  std::int64_t& count = returned ? *returned : ignored;
  count = 1;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:  // the caller made the descriptors
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      return answer(requested, values, std::int64_t{1});
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return answer(requested, values, std::int64_t{0});
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
      return answer(requested, values, std::int32_t{0});
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return answer(requested, values, static_cast<std::int64_t>(settings().cudnn_workspace_bytes));
    case CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      count = 0;
      return CUDNN_STATUS_SUCCESS;
    default:
      break;
  }
  const Descriptor& attributes = descriptor_of(descriptor);
  const auto found = attributes.find(name);
  if (found == attributes.end()) {
    drycuda_default_stub("cudnnBackendGetAttribute of an attribute that was not set");
    count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  count = found->second.count;
  if (values && requested > 0) {
    const std::size_t room_bytes = static_cast<std::size_t>(requested) * element_bytes(type);
    std::memcpy(values, found->second.bytes.data(), std::min(found->second.bytes.size(), room_bytes));
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"

}  // namespace drycuda
