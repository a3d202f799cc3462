// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// What a test may ask of dry CUDA, and tell it. C functions, so that Python reaches them too (control.py). All may be
/// called from any thread. A stream is a `cudaStream_t`; null is the default stream of the current device.
extern "C" {

/// The value of a counter since the start or the last reset; UINT64_MAX if there is none of that name.
std::uint64_t drycuda_count(const char* name);
/// The names of all counters, separated by spaces.
const char* drycuda_counter_names();
/// Sets the counters to 0 and forgets the violations.
void drycuda_reset_counts();

/// Device memory, without what the context takes.
std::uint64_t drycuda_used_bytes(int device);
std::uint64_t drycuda_peak_bytes(int device);
void drycuda_reset_peak(int device);
/// Makes a device larger or smaller; what is allocated stays so.
void drycuda_set_total_bytes(int device, std::uint64_t total_bytes);

/// What is submitted from now on stays unfinished: to any stream, to this one. Waiting for it finishes it.
void drycuda_hold_events(int hold);
void drycuda_hold_stream(void* stream);
/// Finishes all that is held, and holds no more.
void drycuda_release_events();
/// How much was submitted to a stream up to now, for `drycuda_stream_finished`.
std::uint64_t drycuda_stream_position(void* stream);
/// 1 if all that was submitted before `position` has finished.
int drycuda_stream_finished(void* stream, std::uint64_t position);

/// Tells that [address, address + size_bytes) was given out, to work on `stream`. Memory that is still in use is a
/// violation: given out and not yet back, or back while another stream's work on it is unfinished.
void drycuda_range_begin(void* address, std::uint64_t size_bytes, void* stream);
/// Tells that another stream's work uses the range, up to what that stream was given when the range ends.
void drycuda_range_use(void* address, void* stream);
void drycuda_range_end(void* address);
std::uint64_t drycuda_live_ranges();

/// Wrong uses of memory, streams and captures: how many, and the first of them, a line each. The text is cut to
/// `size_bytes`, with the final zero; returns the bytes that all of it needs.
std::uint64_t drycuda_violations();
std::size_t drycuda_violation_text(char* buffer, std::size_t size_bytes);

}  // extern "C"
