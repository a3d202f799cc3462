// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cupti.h>

#include "tests/drycuda/activity.h"
#include "tests/drycuda/cupti_buffers.h"
#include "tests/drycuda/cupti_clock.h"

namespace drycuda::cupti {

/// Which calls of an API are recorded.
class ApiFilter {
 public:
  /// All or none. Overrides what was chosen one by one.
  void choose_all(bool all);
  void choose(CUpti_CallbackId cbid, bool recorded);
  bool records(CUpti_CallbackId cbid) const { return all_ != exceptions_.contains(cbid); }
  bool empty() const { return !all_ && exceptions_.empty(); }

 private:
  bool all_ = false;
  std::set<CUpti_CallbackId> exceptions_;
};

}  // namespace drycuda::cupti

/// The one client of the callback API. CUPTI's header has the name.
struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback = nullptr;
  void* user_data = nullptr;
  std::string name;
  std::map<CUpti_CallbackDomain, drycuda::cupti::ApiFilter> enabled;
};

namespace drycuda::cupti {

/// What tests ask for.
struct Faults {
  CUptiResult subscribe = CUPTI_SUCCESS;
  CUptiResult enable = CUPTI_SUCCESS;
  std::int64_t wrong_size_of = -1;
};

/// All that CUPTI knows in this process but for what belongs to threads.
struct Library {
  /// Held while the client's buffer callbacks run, as CUPTI's own is: a client that takes a lock there which it holds
  /// when it calls CUPTI may deadlock.
  std::recursive_mutex mutex;
  std::array<bool, CUPTI_ACTIVITY_KIND_COUNT> enabled{};
  ApiFilter runtime;
  ApiFilter driver;
  Buffers buffers;
  Clock clock;
  bool buffer_per_thread = true;
  std::map<CUpti_ActivityAttribute, std::uint64_t> attributes;
  CUpti_SubscriberHandle subscriber = nullptr;
  std::set<std::string> names;  ///< of kernels: records point to them, so they are never removed
  Faults faults;

  /// Tells the dry device whether anything is to be observed.
  void observe_if_needed();
  /// As after loading, without faults. Buffers are forgotten.
  void reset();
};

/// Never destroyed: threads may still call CUDA when the process ends.
Library& library();

struct ThreadState {
  std::array<std::vector<std::uint64_t>, CUPTI_EXTERNAL_CORRELATION_KIND_SIZE> external_ids;  ///< a stack for each kind
  std::optional<std::uint32_t> last_call;  ///< correlation id: the launch of a graph is one call, and many activities
};

/// Of the calling thread.
ThreadState& thread_state();

/// Records `activity` as far as its kinds are enabled, and calls the subscriber.
void observe(const Activity& activity);

/// Null if there is no such callback. Domains other than the driver's and the runtime's have no names.
const char* callback_name(CUpti_CallbackDomain domain, CUpti_CallbackId cbid);

}  // namespace drycuda::cupti
