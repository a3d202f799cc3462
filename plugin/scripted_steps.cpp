// SPDX-License-Identifier: Apache-2.0
#include "plugin/scripted_steps.h"

#include <mutex>
#include <optional>

#include "plugin/options.h"
#include "plugin/steps.h"
#include "plugin/torch_headers.h"

namespace stowage {
namespace {

constexpr int kMostForwards = 64;  ///< without a backward: nobody trains here

/// Interpreter frames of TorchScript on this thread (torch 2.11, torch/csrc/jit/runtime/interpreter.cpp tells of each).
thread_local int t_frames = 0;
thread_local int t_forwards = 0;

void enter_from_outside() {
  if (!options().scripted_steps || torch::autograd::get_current_graph_task_id() >= 0) return;
  const bool trains = at::GradMode::is_enabled();
  switch (automatic_step()) {
    case AutomaticStep::kNotWanted:
      return;
    case AutomaticStep::kNone:
      break;
    case AutomaticStep::kBeforeBackward:
      if (trains && ++t_forwards < kMostForwards) return;
      end_automatic_step(/*complete=*/false);
      break;
    case AutomaticStep::kAfterBackward:
      end_automatic_step(/*complete=*/true);
      break;
  }
  if (!trains) return;
  t_forwards = 0;
  begin_automatic_step();
}

std::unique_ptr<at::ObserverContext> enter_frame(const at::RecordFunction&) {
  if (t_frames++ == 0) enter_from_outside();
  return nullptr;
}

void leave_frame(const at::RecordFunction&, at::ObserverContext*) {
  if (t_frames > 0) --t_frames;
}

std::mutex g_mutex;
std::optional<at::CallbackHandle> g_callback;

}  // namespace

void watch_scripted_steps(bool on) {
  std::lock_guard lock(g_mutex);
  if (on && !g_callback) {
    g_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&enter_frame, &leave_frame).scopes({at::RecordScope::TORCHSCRIPT_FUNCTION}));
  } else if (!on && g_callback) {
    at::removeCallback(*g_callback);
    g_callback.reset();
  }
}

}  // namespace stowage
