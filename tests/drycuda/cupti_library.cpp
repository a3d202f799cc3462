// SPDX-License-Identifier: Apache-2.0
#include "tests/drycuda/cupti_library.h"

#include <algorithm>
#include <cstdlib>

#include "tests/drycuda/cupti_control.h"

// The library also loads without the dry device, and then records nothing.
#pragma weak drycuda_set_observer

namespace drycuda::cupti {
namespace {

std::int64_t number(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoll(text, nullptr, 10) : otherwise;
}

Library* make_library() {
  auto* made = new Library;
  made->faults.subscribe = static_cast<CUptiResult>(number("DRYCUPTI_SUBSCRIBE_CODE", 0));
  made->faults.enable = static_cast<CUptiResult>(number("DRYCUPTI_ENABLE_CODE", 0));
  made->faults.wrong_size_of = number("DRYCUPTI_WRONG_SIZE_OF", -1);
  made->buffers.drop_next(static_cast<std::uint64_t>(number("DRYCUPTI_DROP_RECORDS", 0)));
  return made;
}

}  // namespace

void ApiFilter::choose_all(bool all) {
  all_ = all;
  exceptions_.clear();
}

void ApiFilter::choose(CUpti_CallbackId cbid, bool recorded) {
  if (recorded == all_) {
    exceptions_.erase(cbid);
  } else {
    exceptions_.insert(cbid);
  }
}

void Library::observe_if_needed() {
  if (drycuda_set_observer == nullptr) return;
  const bool recording = std::find(enabled.begin(), enabled.end(), true) != enabled.end();
  const bool needed = recording || !runtime.empty() || !driver.empty() || subscriber != nullptr;
  drycuda_set_observer(needed ? observe : nullptr);
}

void Library::reset() {
  enabled = {};
  runtime = {};
  driver = {};
  buffers = {};
  clock = {};
  buffer_per_thread = true;
  attributes.clear();
  delete subscriber;
  subscriber = nullptr;
  observe_if_needed();
}

Library& library() {
  static Library* const instance = make_library();
  return *instance;
}

ThreadState& thread_state() {
  static thread_local ThreadState state;
  return state;
}

}  // namespace drycuda::cupti

using drycuda::cupti::library;

void drycupti_refuse_subscribe(std::int32_t result) {
  const std::lock_guard lock(library().mutex);
  library().faults.subscribe = static_cast<CUptiResult>(result);
}

void drycupti_refuse_enable(std::int32_t result) {
  const std::lock_guard lock(library().mutex);
  library().faults.enable = static_cast<CUptiResult>(result);
}

void drycupti_drop_records(std::uint64_t count) {
  const std::lock_guard lock(library().mutex);
  library().buffers.drop_next(count);
}

void drycupti_wrong_size_of(std::int64_t index) {
  const std::lock_guard lock(library().mutex);
  library().faults.wrong_size_of = index;
}

std::int32_t drycupti_is_enabled(std::int32_t kind) {
  const std::lock_guard lock(library().mutex);
  return kind > 0 && kind < CUPTI_ACTIVITY_KIND_COUNT && library().enabled[kind];
}

std::uint64_t drycupti_buffers_held() {
  const std::lock_guard lock(library().mutex);
  return library().buffers.held();
}

void drycupti_reset() {
  const std::lock_guard lock(library().mutex);
  library().reset();
  library().faults = {};
  drycuda::cupti::thread_state() = {};
}
