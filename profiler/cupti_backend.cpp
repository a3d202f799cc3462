// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti_backend.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "profiler/cupti_api.h"
#include "profiler/cupti_buffers.h"
#include "profiler/cupti_decode.h"

namespace stowage::profiler {
namespace {

struct Kind {
  CUpti_ActivityKind kind;
  bool shared;  ///< torch.profiler records it too; what is enabled is so for the whole process
};

/// An API call's record is preceded by the id of the op that made it: that takes both of API and id.
constexpr std::array<Kind, 8> kKinds{{{CUPTI_ACTIVITY_KIND_MEMORY2, false},
                                      {CUPTI_ACTIVITY_KIND_MEMCPY2, false},
                                      {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, true},
                                      {CUPTI_ACTIVITY_KIND_MEMCPY, true},
                                      {CUPTI_ACTIVITY_KIND_MEMSET, true},
                                      {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, true},
                                      {CUPTI_ACTIVITY_KIND_RUNTIME, true},
                                      {CUPTI_ACTIVITY_KIND_DRIVER, true}}};

bool says(const std::function<bool()>& question) { return question && question(); }

std::string refusal(const std::string& cause) {
  return fmt::format("cannot take sizes from CUPTI: {}; meanwhile the allocator's record gives them", cause);
}

/// What CUPTI reads of itself on Linux. Said again for each run, as torch.profiler sets a clock of its own, in ticks,
/// and CUPTI keeps the last.
std::uint64_t CUPTIAPI now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// Ids of ops are unique in the process, so that a record of an earlier run names none of this.
std::uint64_t take_ids(std::int32_t count) {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
}

class CuptiBackend final : public Backend {
 public:
  CuptiBackend(const CuptiApi& api, TorchProfiler torch_profiler)
      : api_(api), torch_profiler_(std::move(torch_profiler)) {}
  ~CuptiBackend() override {
    try {
      finish();
    } catch (...) {  // only memory for records that nobody will read
    }
  }
  CuptiBackend(const CuptiBackend&) = delete;
  CuptiBackend& operator=(const CuptiBackend&) = delete;

  std::string_view clock() const override { return why_not_.empty() ? "cupti" : host_->clock(); }

  void start(std::int32_t op_count) override {
    finish();
    records_ = {};
    dropped_ = 0;
    run_ = {.first_id = take_ids(op_count), .op_count = op_count};
    const std::string cause = record();
    why_not_ = cause.empty() ? "" : refusal(cause);
    host_->start(op_count);
  }

  void begin_op(std::int32_t op) override {
    if (recording_) {
      const bool pushed =
          api_.push_external_id(kOpIdKind, run_.first_id + static_cast<std::uint64_t>(op)) == CUPTI_SUCCESS;
      if (pushed) {
        ++pushed_;
      } else {
        ++dropped_;
      }
    }
    host_->begin_op(op);
  }

  void end_op(std::int32_t op) override {
    host_->end_op(op);
    if (pushed_ > 0) pop();
  }

  void stop() override {
    host_->stop();
    finish();
  }

  void drain(Run& run) override {
    host_->drain(run);
    resolve(records_, run_, run);
    run.clock = clock();
    run.dropped_records = dropped_;
  }

  std::string why_not() const override { return why_not_; }

 private:
  /// Starts recording; otherwise returns why not.
  std::string record() {
    if (says(torch_profiler_.is_recording)) return "torch.profiler is recording; end its block first";
    if (!CuptiBuffers::instance().open()) return "another run is being recorded; profile one step at a time";
    std::string cause = enable();
    if (cause.empty()) {
      recording_ = true;
    } else {
      CuptiBuffers::instance().close();
    }
    return cause;
  }

  std::string enable() {
    const auto failed = [&](const char* call, CUptiResult result) { return explain(api_, call, result); };
    // Before any kind, or records of both clocks would mix.
    CUptiResult result = api_.register_timestamp_callback(now_ns);
    if (result != CUPTI_SUCCESS) return failed("cuptiActivityRegisterTimestampCallback", result);
    result = api_.register_callbacks(CuptiBuffers::request, CuptiBuffers::complete);
    if (result != CUPTI_SUCCESS) return failed("cuptiActivityRegisterCallbacks", result);
    take_dropped();  // others' count
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      result = api_.enable(kKinds[kind].kind);
      if (result == CUPTI_SUCCESS) continue;
      while (kind > 0) api_.disable(kKinds[--kind].kind);
      return failed("cuptiActivityEnable", result);
    }
    result = api_.get_timestamp(&run_.start_ns);
    if (result == CUPTI_SUCCESS) return "";
    for (const Kind& kind : kKinds) api_.disable(kind.kind);
    return failed("cuptiGetTimestamp", result);
  }

  void finish() {
    if (!recording_) return;
    recording_ = false;
    while (pushed_ > 0) pop();  // of an op that threw
    // What torch.profiler enabled meanwhile is its to disable.
    const bool overlapped = says(torch_profiler_.is_recording);
    for (const Kind& kind : kKinds) {
      if (!overlapped || !kind.shared) api_.disable(kind.kind);
    }
    if (overlapped) ++dropped_;
    // In any case: CUPTI would fill our last buffer with what torch.profiler records next, and that would never see it.
    if (api_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != CUPTI_SUCCESS) ++dropped_;
    dropped_ += take_dropped();
    CuptiBuffers::Left left = CuptiBuffers::instance().close();
    dropped_ += left.missing;
    for (const CuptiBuffers::Full& full : left.full) {
      decode(full.bytes.get(), full.valid_bytes, api_.get_next_record, records_);
    }
    dropped_ += records_.damaged_buffers;
  }

  void pop() {
    api_.pop_external_id(kOpIdKind, nullptr);
    --pushed_;
  }

  std::int64_t take_dropped() {
    std::size_t dropped = 0;
    return api_.get_dropped_records(nullptr, 0, &dropped) == CUPTI_SUCCESS ? static_cast<std::int64_t>(dropped) : 1;
  }

  const CuptiApi api_;
  const TorchProfiler torch_profiler_;
  const std::unique_ptr<Backend> host_ = make_cpu_backend();
  bool recording_ = false;
  int pushed_ = 0;  ///< op ids on CUPTI's stack for this thread
  std::string why_not_;
  CuptiRun run_;
  CuptiRecords records_;
  std::int64_t dropped_ = 0;
};

/// Why CUPTI cannot be used; empty if it can.
std::string find_obstacle(const CuptiApi& api, const TorchProfiler& torch_profiler) {
  std::uint32_t version = 0;
  CUptiResult result = api.get_version(&version);
  if (result != CUPTI_SUCCESS) return explain(api, "cuptiGetVersion", result);
  constexpr std::uint32_t kMajorStep = 10'000;
  if (version / kMajorStep != CUPTI_API_VERSION / kMajorStep) {
    return fmt::format("its version is {}, this build knows {}; build stowage against the torch that runs it", version,
                       CUPTI_API_VERSION);
  }
  // Only a probe, given back at once: torch.profiler sees no device for good if it cannot subscribe when first used.
  CUpti_SubscriberHandle subscriber = nullptr;
  result = api.subscribe(
      &subscriber, [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}, nullptr);
  if (result == CUPTI_SUCCESS) {
    api.unsubscribe(subscriber);
    return "";
  }
  const bool idle_torch_profiler =
      result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && says(torch_profiler.is_subscribed);
  return idle_torch_profiler ? "" : explain(api, "cuptiSubscribe", result);
}

}  // namespace

std::unique_ptr<Backend> make_cupti_backend(const TorchProfiler& torch_profiler, std::string& why_not) {
  std::string cause;
  if (const auto api = load_cupti_api(cause)) return make_cupti_backend(*api, torch_profiler, why_not);
  why_not = refusal(cause);
  return nullptr;
}

std::unique_ptr<Backend> make_cupti_backend(const CuptiApi& api, const TorchProfiler& torch_profiler,
                                            std::string& why_not) {
  const std::string cause = find_obstacle(api, torch_profiler);
  if (cause.empty()) return std::make_unique<CuptiBackend>(api, torch_profiler);
  why_not = refusal(cause);
  return nullptr;
}

}  // namespace stowage::profiler
