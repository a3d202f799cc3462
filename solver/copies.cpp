// SPDX-License-Identifier: Apache-2.0
#include "solver/copies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace stowage::solver {
namespace {

constexpr std::int32_t kNotYet = -1;

}  // namespace

std::int64_t Link::copy_ns(std::int32_t tensor) const {
  const auto size_bytes = static_cast<double>(problem_.tensors[tensor].size_bytes);
  return static_cast<std::int64_t>(std::ceil(size_bytes * 1e9 / static_cast<double>(bytes_per_s_)));
}

/// From the last copy to the first: each must end before its use and before the next one has to begin.
void Link::plan_fetches(const std::vector<std::int32_t>& executions, std::vector<Copy>& copies) {
  start_ns_.resize(executions.size());
  std::int64_t clock_ns = 0;
  for (std::size_t execution = 0; execution < executions.size(); ++execution) {
    start_ns_[execution] = clock_ns;
    clock_ns += problem_.ops[executions[execution]].duration_ns;
  }
  std::int64_t latest_ns = std::numeric_limits<std::int64_t>::max();
  for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy) {
    latest_ns = std::min(latest_ns, start_ns_[copy->arrive_before]) - copy_ns(copy->tensor);
    const auto first_later =
        std::upper_bound(start_ns_.begin(), start_ns_.begin() + copy->arrive_before + 1, latest_ns);
    copy->fetch_before = std::max<std::int32_t>(static_cast<std::int32_t>(first_later - start_ns_.begin()) - 1, 0);
  }
}

std::int32_t Link::schedule(const std::vector<std::int32_t>& executions, std::vector<Copy>& copies,
                            std::int64_t& time_ns) {
  plan_fetches(executions, copies);
  leaving_.resize(copies.size());
  std::iota(leaving_.begin(), leaving_.end(), 0);
  std::stable_sort(leaving_.begin(), leaving_.end(),
                   [&](auto left, auto right) { return copies[left].offload_after < copies[right].offload_after; });
  end_ns_.resize(copies.size());
  for (Copy& copy : copies) copy.offloaded_after = kNotYet;

  std::int64_t clock_ns = 0;
  std::int64_t out_free_ns = 0;
  std::int64_t back_free_ns = 0;
  std::size_t asked = 0;    // copies of `leaving_`
  std::size_t left = 0;     // copies of `leaving_`
  std::size_t fetched = 0;  // copies
  std::size_t arrived = 0;  // copies
  for (std::int32_t execution = 0; execution < std::ssize(executions); ++execution) {
    for (; fetched < copies.size() && copies[fetched].fetch_before <= execution; ++fetched) {
      Copy& copy = copies[fetched];
      if (copy.offloaded_after == kNotYet || copy.offloaded_after + 1 >= execution) break;
      copy.fetch_before = execution;
      end_ns_[fetched] = back_free_ns = std::max(clock_ns, back_free_ns) + copy_ns(copy.tensor);
    }
    for (; arrived < copies.size() && copies[arrived].arrive_before == execution; ++arrived) {
      if (arrived >= fetched) return static_cast<std::int32_t>(arrived);
      clock_ns = std::max(clock_ns, end_ns_[arrived]);
    }
    clock_ns += problem_.ops[executions[execution]].duration_ns;
    for (; left < asked && end_ns_[leaving_[left]] <= clock_ns; ++left) {
      copies[leaving_[left]].offloaded_after = execution;
    }
    for (; asked < copies.size() && copies[leaving_[asked]].offload_after == execution; ++asked) {
      const std::int32_t copy = leaving_[asked];
      end_ns_[copy] = out_free_ns = std::max(clock_ns, out_free_ns) + copy_ns(copies[copy].tensor);
    }
  }
  time_ns = clock_ns;
  return -1;
}

}  // namespace stowage::solver
