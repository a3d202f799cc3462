// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "profiler/backend.h"

namespace stowage::profiler {

struct CuptiApi;

/// What is known of torch.profiler, which shares CUPTI with us. Each is called on the thread that calls the backend; an
/// empty one says no.
struct TorchProfiler {
  /// It has been used in this process: it holds CUPTI's one subscription from then on, idle or not.
  std::function<bool()> is_subscribed;
  /// It records now. A run that it overlaps counts as lossy.
  std::function<bool()> is_recording;
};

/// Records a run with CUPTI: besides the op times on the host, its kernels, copies and driver allocations, each with
/// the op that caused it. Null where CUPTI cannot be used, and `why_not` says in one line why and how to mend that.
///
/// The device must be idle when `stop` is called: the records of what still runs are incomplete. Where CUPTI refuses at
/// `start`, the run has times from the host alone, and the backend's `why_not()` says why. Between `start` and `stop`
/// CUPTI's buffers come to us; its subscription is never kept, so that torch.profiler works before and after a run.
std::unique_ptr<Backend> make_cupti_backend(const TorchProfiler& torch_profiler, std::string& why_not);

/// The same over the given functions, which must outlive the process's use of CUPTI.
std::unique_ptr<Backend> make_cupti_backend(const CuptiApi& api, const TorchProfiler& torch_profiler,
                                            std::string& why_not);

}  // namespace stowage::profiler
