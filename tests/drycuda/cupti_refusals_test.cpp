// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/drycuda/cupti_double.h"

namespace drycuda {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Call {
  CUpti_ApiCallbackSite site;
  std::string function;
  std::uint32_t correlation;

  bool operator==(const Call&) const = default;
};

void keep_call(void* calls, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  static_cast<std::vector<Call>*>(calls)->push_back({call->callbackSite, call->functionName, call->correlationId});
}

TEST_F(Cupti, HasOneSubscriberAtATime) {
  CUpti_SubscriberHandle first = nullptr;
  CUpti_SubscriberHandle second = nullptr;
  CUpti_SubscriberParams parameters{};
  parameters.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  parameters.subscriberName = "one";
  ASSERT_EQ(cuptiSubscribe_v2(&first, keep_call, nullptr, &parameters), CUPTI_SUCCESS);
  EXPECT_EQ(cuptiSubscribe(&second, keep_call, nullptr), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  char holder[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN]{};
  parameters.oldSubscriberName = holder;
  parameters.oldSubscriberSize = sizeof(holder);
  EXPECT_EQ(cuptiSubscribe_v2(&second, keep_call, nullptr, &parameters),
            CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_STREQ(holder, "CUPTI for one");
  EXPECT_EQ(cuptiUnsubscribe(second), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiUnsubscribe(first), CUPTI_SUCCESS);
  EXPECT_EQ(cuptiUnsubscribe(first), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiSubscribe(&second, keep_call, nullptr), CUPTI_SUCCESS);
}

TEST_F(Cupti, CallsTheSubscriberAtBothEndsOfAChosenCall) {
  std::vector<Call> calls;
  CUpti_SubscriberHandle subscriber = nullptr;
  ASSERT_EQ(cuptiSubscribe(&subscriber, keep_call, &calls), CUPTI_SUCCESS);
  device.act(kernel(1));
  EXPECT_THAT(calls, IsEmpty()) << "nothing is chosen yet";
  ASSERT_EQ(
      cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000),
      CUPTI_SUCCESS);
  device.act(kernel(2));
  device.act(allocation(3));
  EXPECT_THAT(calls, ElementsAre(Call{CUPTI_API_ENTER, "cudaLaunchKernel_v7000", 2},
                                 Call{CUPTI_API_EXIT, "cudaLaunchKernel_v7000", 2}));
  ASSERT_EQ(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API), CUPTI_SUCCESS);
  device.act(allocation(4));
  EXPECT_EQ(calls.size(), 4U);
  ASSERT_EQ(cuptiUnsubscribe(subscriber), CUPTI_SUCCESS);
  device.act(allocation(5));
  EXPECT_EQ(calls.size(), 4U);
}

TEST_F(Cupti, MayBeFinalizedFromACallback) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  CUpti_SubscriberHandle subscriber = nullptr;
  const auto detach = [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
    if (static_cast<const CUpti_CallbackData*>(data)->callbackSite == CUPTI_API_EXIT) cuptiFinalize();
  };
  ASSERT_EQ(cuptiSubscribe(&subscriber, detach, nullptr), CUPTI_SUCCESS);
  ASSERT_EQ(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API), CUPTI_SUCCESS);
  device.act(allocation(1));
  EXPECT_EQ(device.observer, nullptr);
  EXPECT_EQ(drycupti_is_enabled(CUPTI_ACTIVITY_KIND_MEMORY2), 0);
  EXPECT_EQ(cuptiSubscribe(&subscriber, detach, nullptr), CUPTI_SUCCESS);
}

TEST_F(Cupti, RefusesToSubscribeWhenTold) {
  CUpti_SubscriberHandle subscriber = nullptr;
  drycupti_refuse_subscribe(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(cuptiSubscribe(&subscriber, keep_call, nullptr), CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(subscriber, nullptr);
  drycupti_refuse_subscribe(0);
  EXPECT_EQ(cuptiSubscribe(&subscriber, keep_call, nullptr), CUPTI_SUCCESS);
}

TEST_F(Cupti, RefusesToEnableWhenTold) {
  drycupti_refuse_enable(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMORY2), CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(drycupti_is_enabled(CUPTI_ACTIVITY_KIND_MEMORY2), 0);
  EXPECT_EQ(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMORY2), CUPTI_SUCCESS);
  drycupti_refuse_enable(0);
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMORY2), CUPTI_SUCCESS);
}

TEST_F(Cupti, RefusesKindsThatDoNotExistOrDoNotGoTogether) {
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_INVALID), CUPTI_ERROR_INVALID_KIND);
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_COUNT), CUPTI_ERROR_INVALID_KIND);
  enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_KERNEL), CUPTI_ERROR_NOT_COMPATIBLE);
}

TEST_F(Cupti, DropsRecordsWhenTold) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  drycupti_drop_records(2);
  for (std::uint32_t correlation = 1; correlation <= 3; ++correlation) device.act(allocation(correlation));
  flush();
  const auto records = device.records<CUpti_ActivityMemory4>(CUPTI_ACTIVITY_KIND_MEMORY2);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].correlationId, 3U);
  EXPECT_EQ(dropped(), 2U);
  EXPECT_EQ(dropped(), 0U);
}

TEST_F(Cupti, SaysAWrongSizeOnceWhenTold) {
  enable({CUPTI_ACTIVITY_KIND_MEMORY2});
  drycupti_wrong_size_of(1);
  Activity release = allocation(2, 64);
  release.kind = ActivityKind::kFree;
  device.act(allocation(1, 64));
  device.act(release);  // only allocations count
  device.act(allocation(3, 64));
  device.act(allocation(4, 64));
  flush();
  std::vector<std::uint64_t> sizes;
  for (const auto& record : device.records<CUpti_ActivityMemory4>(CUPTI_ACTIVITY_KIND_MEMORY2)) {
    sizes.push_back(record.bytes);
  }
  EXPECT_THAT(sizes, ElementsAre(64, 64, 65, 64));
}

TEST_F(Cupti, SupportsNoMoreThanItSays) { EXPECT_EQ(cuptiActivityFlushPeriod(1), CUPTI_ERROR_NOT_SUPPORTED); }

TEST_F(Cupti, NamesResultsCallsAndItsVersion) {
  const char* text = nullptr;
  EXPECT_EQ(cuptiGetResultString(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, &text), CUPTI_SUCCESS);
  EXPECT_STREQ(text, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED");
  EXPECT_EQ(cuptiGetResultString(static_cast<CUptiResult>(998), &text), CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiGetErrorMessage(CUPTI_ERROR_UNKNOWN, &text), CUPTI_SUCCESS);
  EXPECT_STREQ(text, "An unknown internal error has occurred.");
  EXPECT_EQ(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, &text),
            CUPTI_SUCCESS);
  EXPECT_STREQ(text, "cuMemAlloc_v2");
  EXPECT_EQ(cuptiGetCallbackName(CUPTI_CB_DOMAIN_RESOURCE, 1, &text), CUPTI_ERROR_INVALID_PARAMETER);
  std::uint32_t version = 0;
  EXPECT_EQ(cuptiGetVersion(&version), CUPTI_SUCCESS);
  EXPECT_EQ(version, static_cast<std::uint32_t>(CUPTI_API_VERSION));
}

}  // namespace
}  // namespace drycuda
