// SPDX-License-Identifier: Apache-2.0
#include "plugin/origins.h"

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace stowage {
namespace {

constexpr std::string_view kIn = "in ";  // no source of TorchScript's begins so

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Source;
using torch::jit::SourceRange;
using torch::jit::Symbol;
using torch::jit::Value;

SourceRange to_range(const nlohmann::json& origin) {
  const std::string scope = origin.at(0);
  const std::string file = origin.at(1);
  const std::size_t line = origin.at(2);
  auto source = std::make_shared<Source>(fmt::format("{}{}\n", kIn, scope),
                                         file.empty() ? std::nullopt : std::optional(file), line);
  return SourceRange(std::move(source), kIn.size(), kIn.size() + scope.size());
}

}  // namespace

void take_origins(Graph& graph, const Node& mark) {
  const Symbol origins = Symbol::attr("origins");
  if (!mark.hasAttribute(origins)) return;
  const at::Tensor& text = mark.t(origins);
  const auto* begin = text.const_data_ptr<std::uint8_t>();
  const auto json = nlohmann::json::parse(begin, begin + text.numel());

  std::vector<SourceRange> ranges;
  for (const auto& origin : json.at("origins")) ranges.push_back(to_range(origin));
  std::unordered_map<std::string, std::size_t> number_of;
  for (const auto& [name, number] : json.at("ops").items()) number_of.emplace(name, number);
  for (Node* node : graph.nodes().reverse()) {
    if (node->kind() == torch::jit::prim::Constant || node->outputs().empty()) continue;
    const Value& first = *node->outputs()[0];
    if (const auto found = number_of.find(first.debugName()); found != number_of.end()) {
      node->setSourceRange(ranges.at(found->second));
    } else if (first.hasUses()) {
      node->setSourceRange(first.uses()[0].user->sourceRange());
    }
  }
}

std::string scope_of(const Node& op) {
  const SourceRange range = op.sourceRange();
  const bool has_origin =
      range.source() && range.start() == kIn.size() && range.source()->text_str().substr(0, kIn.size()).str() == kIn;
  return has_origin ? range.text().str() : op.scopeName();
}

std::string source_of(const Node& op) {
  if (const auto location = op.sourceRange().file_line_col()) {
    return fmt::format("{}:{}", std::get<0>(*location), std::get<1>(*location));
  }
  return {};
}

}  // namespace stowage
