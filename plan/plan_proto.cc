// Part of plan/plan.h: conversion from and to the protocol's message.
//
// The message contains only choices: splits, buckets, algorithms and the link. Everything that
// follows from them (layouts, sums, replica axes) is computed again on every rank, so that a
// message cannot contradict itself. It comes from another program and is untrusted; limits keep a
// malformed mesh from exhausting memory before CheckPlan sees it.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/plan.h"

namespace cadre {
namespace {

// Plans beyond these limits are considered malformed.
constexpr uint64_t kMaxRanks = 1 << 20;
constexpr int kMaxAxes = 16;
constexpr size_t kMaxAxisName = 63;

using Axes = std::vector<std::string>;

bool IsAxisName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxAxisName &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-';
         });
}

absl::StatusOr<Mesh> MeshFromProto(const v1::Plan& proto) {
  if (proto.mesh_size() > kMaxAxes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mesh has ", proto.mesh_size(), " axes, more than ", kMaxAxes));
  }
  std::vector<Mesh::Axis> axes;
  std::set<std::string> names;
  uint64_t ranks = 1;
  for (const v1::MeshAxis& axis : proto.mesh()) {
    ranks *= axis.size();
    if (!IsAxisName(axis.name()) || !names.insert(axis.name()).second || ranks == 0 ||
        ranks > kMaxRanks) {
      return absl::InvalidArgumentError(absl::StrCat("mesh axis '", absl::CEscape(axis.name()),
                                                     "' of size ", axis.size(),
                                                     " is malformed, named twice or too large"));
    }
    axes.push_back({.name = axis.name()});
    axes.back().size = axis.size();
  }
  return Mesh(std::move(axes));
}

absl::StatusOr<LayerLayouts> LayerFromProto(const v1::LayerPlan& proto, const GraphLayer& layer,
                                            const Mesh& mesh) {
  if (proto.layer() != layer.name) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has layer '",
                                                   absl::CEscape(proto.layer()),
                                                   "' where the model has '", layer.name, "'"));
  }
  std::vector<IndexSplit> splits;
  for (const v1::IndexSplit& split : proto.split()) {
    splits.push_back({split.index(), Axes(split.axes().begin(), split.axes().end())});
  }
  return LayOut(layer, mesh, std::move(splits), CoordinatesFromProto(proto.at()));
}

absl::StatusOr<Bucket> BucketFromProto(const v1::BucketPlan& proto, int number, const Plan& plan,
                                       const ParameterIndex& index) {
  const std::optional<Algorithm> algorithm = AlgorithmFromProto(proto.algorithm());
  if (!algorithm) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", number, ": unknown algorithm ", proto.algorithm()));
  }
  Bucket bucket{.axes = {proto.axes().begin(), proto.axes().end()}, .algorithm = *algorithm};
  for (const std::string& name : proto.parameters()) {
    const auto parameter = index.Find(name);
    if (!parameter.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "bucket ", number, ": the model has no parameter '", absl::CEscape(name), "'"));
    }
    bucket.parameters.push_back(*parameter);
  }
  if (!bucket.parameters.empty()) {
    // CheckPlan requires the same of all its parameters.
    const Parameter& first = index[bucket.parameters.front()];
    const LayerLayouts& layer = plan.layers[first.layer];
    bucket.replica_axes = ReplicaAxes(layer, first.number, plan.mesh);
    bucket.at = layer.at;
  }
  return bucket;
}

absl::StatusOr<Interval> BlockFromProto(const v1::RecomputedBlock& proto, const Graph& graph) {
  Interval block;
  const auto find = [&](const std::string& name, int64_t& number) -> absl::Status {
    const auto found = std::find_if(graph.layers().begin(), graph.layers().end(),
                                    [&](const GraphLayer& layer) { return layer.name == name; });
    number = found - graph.layers().begin();
    if (found != graph.layers().end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("recomputed block: the model has no layer '", absl::CEscape(name), "'"));
  };
  CADRE_RETURN_IF_ERROR(find(proto.first(), block.begin));
  CADRE_RETURN_IF_ERROR(find(proto.last(), block.end));
  ++block.end;
  return block;
}

absl::Status ReadLink(const v1::LinkProfile& proto, Plan& plan) {
  if (!v1::LinkProfile::Kind_IsValid(proto.kind())) {
    return absl::InvalidArgumentError(absl::StrCat("link: unknown kind ", proto.kind()));
  }
  auto link = LinkProfileFromProto(proto);
  if (!link.ok()) return Annotate(link.status(), "link");
  plan.link = *std::move(link);
  plan.link_kind = proto.kind();
  return absl::OkStatus();
}

}  // namespace

std::vector<AxisCoordinate> CoordinatesFromProto(
    const google::protobuf::RepeatedPtrField<v1::AxisCoordinate>& proto) {
  std::vector<AxisCoordinate> coordinates;
  for (const v1::AxisCoordinate& each : proto) {
    coordinates.push_back({.axis = each.axis()});
    // Larger numbers exist on no mesh.
    coordinates.back().coordinate = std::min<uint32_t>(each.coordinate(), kMaxRanks);
  }
  return coordinates;
}

absl::StatusOr<Plan> PlanFromProto(const v1::Plan& proto, const Graph& graph,
                                   const ParameterIndex& index) {
  Plan plan;
  CADRE_ASSIGN_OR_RETURN(plan.mesh, MeshFromProto(proto));
  if (proto.layers_size() != graph.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", proto.layers_size(), " layers, the model ", graph.size()));
  }
  for (int l = 0; l < graph.size(); ++l) {
    CADRE_ASSIGN_OR_RETURN(LayerLayouts layer,
                           LayerFromProto(proto.layers(l), graph[l], plan.mesh));
    plan.layers.push_back(std::move(layer));
  }
  for (int b = 0; b < proto.buckets_size(); ++b) {
    CADRE_ASSIGN_OR_RETURN(Bucket bucket, BucketFromProto(proto.buckets(b), b, plan, index));
    plan.buckets.push_back(std::move(bucket));
  }
  for (const v1::RecomputedBlock& block : proto.recomputed()) {
    CADRE_ASSIGN_OR_RETURN(plan.recomputed.emplace_back(), BlockFromProto(block, graph));
  }
  CADRE_RETURN_IF_ERROR(ReadLink(proto.link(), plan));
  CADRE_RETURN_IF_ERROR(CheckPlan(plan, graph, index));
  return plan;
}

v1::Plan PlanToProto(const Plan& plan, const ParameterIndex& index) {
  v1::Plan proto;
  for (const Mesh::Axis& axis : plan.mesh.axes()) {
    v1::MeshAxis* to = proto.add_mesh();
    to->set_name(axis.name);
    to->set_size(axis.size);
  }
  for (const LayerLayouts& layer : plan.layers) {
    v1::LayerPlan* to = proto.add_layers();
    to->set_layer(layer.name);
    for (const IndexSplit& split : layer.splits) {
      v1::IndexSplit* entry = to->add_split();
      entry->set_index(split.index);
      for (const std::string& axis : split.axes) entry->add_axes(axis);
    }
    for (const AxisCoordinate& each : layer.at) {
      v1::AxisCoordinate* entry = to->add_at();
      entry->set_axis(each.axis);
      entry->set_coordinate(each.coordinate);
    }
  }
  for (const Bucket& bucket : plan.buckets) {
    v1::BucketPlan* to = proto.add_buckets();
    for (const int parameter : bucket.parameters) to->add_parameters(index[parameter].name);
    for (const std::string& axis : bucket.axes) to->add_axes(axis);
    to->set_algorithm(AlgorithmToProto(bucket.algorithm));
  }
  for (const Interval& block : plan.recomputed) {
    v1::RecomputedBlock* to = proto.add_recomputed();
    to->set_first(plan.layers[block.begin].name);
    to->set_last(plan.layers[block.end - 1].name);
  }
  if (plan.link.known() || !plan.link.samples.empty() ||
      plan.link_kind != v1::LinkProfile::KIND_UNSPECIFIED) {
    *proto.mutable_link() = LinkProfileToProto(plan.link);
    proto.mutable_link()->set_kind(plan.link_kind);
  }
  return proto;
}

}  // namespace cadre
