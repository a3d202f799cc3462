// SPDX-License-Identifier: Apache-2.0
#include "plugin/pass.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "plugin/cpu_allocator.h"
#include "plugin/dependencies.h"
#include "plugin/devices.h"
#include "plugin/note.h"
#include "plugin/options.h"
#include "plugin/origins.h"
#include "plugin/plan_memory.h"
#include "plugin/region.h"
#include "plugin/registry.h"
#include "plugin/scripted_steps.h"
#include "plugin/steps.h"
#include "plugin/torch_headers.h"

namespace stowage {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Symbol;
using torch::jit::Value;

struct LeftAlone {
  std::string name;
  std::size_t ops = 0;
  std::string why;
};

std::mutex g_mutex;  // guards what follows; passes run on the threads that run graphs
std::optional<torch::jit::GraphPassNameType> g_pass;
std::int64_t g_graphs_seen = 0;
std::vector<LeftAlone> g_left_alone;
std::map<std::string, int> g_names;

Symbol name_symbol() { return Symbol::fromQualString("stowage::name"); }

/// What `stowage::name[name]()` says, which is taken out; else after the module that the graph belongs to; numbered
/// from the second of a name on.
std::string take_name(Graph& graph) {
  std::string name = "graph";
  if (!graph.inputs().empty()) {
    if (const auto type = graph.inputs()[0]->type()->cast<c10::ClassType>()) name = type->name()->name();
  }
  for (auto node = graph.nodes().begin(); node != graph.nodes().end(); ++node) {
    if (node->kind() != name_symbol()) continue;
    name = node->s(torch::jit::attr::name);
    take_origins(graph, **node);
    node.destroyCurrent();
    break;
  }
  const int number = ++g_names[name];
  return number == 1 ? name : fmt::format("{}.{}", name, number);
}

std::size_t count_ops(const Block& block) {
  std::size_t ops = 0;
  for (const Node* node : block.nodes()) ops += node->kind() != torch::jit::prim::Constant;
  return ops;
}

/// The block in which the graph does its work. A backward graph asks first whether all gradients are as profiled: the
/// first branch of that `if` is the work, the other a fallback.
Block& working_block(Graph& graph) {
  Block* found = graph.block();
  const std::size_t ops = count_ops(*found);
  for (Node* node : graph.nodes()) {
    if (node->kind() != torch::jit::prim::If) continue;
    const auto other = node->blocks()[1]->nodes();
    const bool is_guard = std::any_of(
        other.begin(), other.end(), [](const Node* inner) { return inner->kind() == torch::jit::prim::FallbackGraph; });
    if (is_guard && count_ops(*node->blocks()[0]) > ops) return *node->blocks()[0];
  }
  return *found;
}

/// Moves what the block does to a graph, whose inputs are the outer values that it uses, given back in `inputs`.
std::shared_ptr<Graph> to_graph(Block& block, std::vector<Value*>& inputs) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<Value*, Value*> inner;
  for (Value* input : block.owningGraph()->inputs()) {  // those that it uses come in their order
    inner[input] = graph->addInput()->copyMetadata(input);
    inputs.push_back(input);
  }
  const auto map = [&](Value* value) {
    if (const auto found = inner.find(value); found != inner.end()) return found->second;
    if (value->node()->kind() == torch::jit::prim::Constant) {
      Node* constant = graph->prependNode(graph->createClone(value->node(), [](Value* outer) { return outer; }));
      return inner[value] = constant->output();
    }
    inputs.push_back(value);
    return inner[value] = graph->addInput()->copyMetadata(value);
  };
  for (Node* node : block.nodes()) {
    Node* clone = graph->appendNode(graph->createClone(node, map));
    for (std::size_t output = 0; output < node->outputs().size(); ++output) {
      inner[node->outputs()[output]] = clone->outputs()[output];
    }
  }
  for (Value* output : block.outputs()) graph->registerOutput(map(output));
  for (std::size_t input = graph->inputs().size(); input-- > 0;) {
    if (graph->inputs()[input]->hasUses()) continue;
    graph->eraseInput(input);
    inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(input));
  }
  return graph;
}

/// Replaces all nodes of the block by one region that holds a copy of them.
void wrap(Block& block, const std::string& name) {
  Graph& graph = *block.owningGraph();
  std::vector<Node*> old(block.nodes().begin(), block.nodes().end());
  std::vector<Value*> inputs(graph.inputs().begin(), graph.inputs().end());
  std::shared_ptr<Graph> work;
  if (&block == graph.block()) {
    work = graph.copy();
  } else {
    inputs.clear();
    work = to_graph(block, inputs);
  }
  Node* region = graph.create(Symbol::fromQualString("stowage::region"), inputs, block.outputs().size());
  region->g_(torch::jit::attr::Subgraph, std::move(work));
  region->s_(torch::jit::attr::name, name);
  block.appendNode(region);
  for (std::size_t output = 0; output < block.outputs().size(); ++output) {
    region->outputs()[output]->setType(block.outputs()[output]->type());
    block.replaceOutput(output, region->outputs()[output]);
  }
  for (auto node = old.rbegin(); node != old.rend(); ++node) (*node)->destroy();
}

void region_pass(std::shared_ptr<Graph>& graph) {
  std::lock_guard lock(g_mutex);
  ++g_graphs_seen;
  const std::string name = take_name(*graph);
  Block& block = working_block(*graph);
  const std::size_t ops = count_ops(block);
  std::string why = why_left_alone(block);
  if (why.empty() && ops < static_cast<std::size_t>(options().min_ops)) {
    why = fmt::format("it has {} ops, fewer than the option min_ops ({})", ops, options().min_ops);
  }
  if (!why.empty()) {
    g_left_alone.push_back({name, ops, std::move(why)});
    return;
  }
  wrap(block, name);
}

void apply_options() {
  for (PlannedAllocator* allocator : all_allocators()) allocator->set_poison(options().poison || options().verify);
  cpu_allocator().set_meter(options().meter);
}

}  // namespace

void enable(const std::string& store) {
  if (!store.empty()) set_option("store", store);
  open_plan_memory();
  install_allocators();
  apply_options();
  disown_steps();
  set_planning(true);
  watch_scripted_steps(true);
  std::lock_guard lock(g_mutex);
  if (!g_pass) g_pass = torch::jit::registerPostPass(region_pass);
}

void disable() {
  {
    std::lock_guard lock(g_mutex);
    if (g_pass) torch::jit::clearPostPass(*g_pass);
    g_pass.reset();
  }
  set_planning(false);
  watch_scripted_steps(false);
  close_plan_memory();
  forget_steps();
  for (PlannedAllocator* allocator : all_allocators()) allocator->release_arena();
  remove_cpu_allocator();  // that of CUDA stays for good
}

void configure(const std::string& name, const std::string& value) {
  set_option(name, value);
  apply_options();
}

std::string status() {
  nlohmann::json json;
  json["version"] = STOWAGE_VERSION;
  json["torch_version"] = TORCH_VERSION;
  json["options"] = option_values();
  json["store"] = plan_memory_path();
  json["store_error"] = plan_memory_error();
  std::int64_t arena_bytes = 0;
  for (const PlannedAllocator* allocator : all_allocators()) arena_bytes += allocator->arena_bytes();
  json["arena_bytes"] = arena_bytes;
  const MeterReading meter = cpu_allocator().meter();
  json["meter"] = {{"live_bytes", meter.live_bytes}, {"peak_bytes", meter.peak_bytes}};
  json["notes"] = notes();
  json["regions"] = all_regions_status();
  json["steps"] = steps_status();
  std::lock_guard lock(g_mutex);
  json["enabled"] = g_pass.has_value();
  json["graphs_seen"] = g_graphs_seen;
  json["left_alone"] = nlohmann::json::array();
  for (const LeftAlone& graph : g_left_alone) {
    json["left_alone"].push_back({{"name", graph.name}, {"ops", graph.ops}, {"why", graph.why}});
  }
  return json.dump();
}

std::string planned_graph(const std::string& name) {
  if (auto text = region_text(name)) return *text;
  std::vector<std::string> names;
  for (const auto& region : all_regions_status()) names.push_back(region["name"]);
  throw std::invalid_argument(
      names.empty() ? "cannot print the planned graph: no graph has met stowage yet; run a scripted module twice first"
                    : fmt::format("cannot print the planned graph of '{}': there is no such region; there are {}", name,
                                  fmt::join(names, ", ")));
}

torch::jit::RegisterOperators register_name_operator() {
  return torch::jit::RegisterOperators({torch::jit::Operator(
      name_symbol(), [](const Node*) -> torch::jit::Operation { return [](torch::jit::Stack&) {}; },
      c10::AliasAnalysisKind::CONSERVATIVE)});
}

}  // namespace stowage
