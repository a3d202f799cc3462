// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What tests ask of the dry CUPTI, also by ctypes (cupti_control.py). All are safe from any thread. The variables
/// DRYCUPTI_SUBSCRIBE_CODE, DRYCUPTI_ENABLE_CODE, DRYCUPTI_DROP_RECORDS and DRYCUPTI_WRONG_SIZE_OF set the first four
/// when the library is loaded.
extern "C" {

/// Every call of cuptiSubscribe returns `result`, a CUptiResult, until this is called with 0.
void drycupti_refuse_subscribe(std::int32_t result);
/// Every call of cuptiActivityEnable returns `result` until this is called with 0.
void drycupti_refuse_enable(std::int32_t result);
/// The next `count` records are lost, and counted in cuptiActivityGetNumDroppedRecords.
void drycupti_drop_records(std::uint64_t count);
/// The MEMORY2 record of the `index`-th allocation from now (0: the next one recorded) says one byte too many; -1:
/// none.
void drycupti_wrong_size_of(std::int64_t index);

/// Whether `kind`, a CUpti_ActivityKind, is being collected.
std::int32_t drycupti_is_enabled(std::int32_t kind);
/// Buffers that the client handed out and has not been given back.
std::uint64_t drycupti_buffers_held();
/// As after loading, but for the variables: nothing enabled, registered, subscribed or refused; buffers are forgotten.
void drycupti_reset();
}
