// Part of spec/plan.h: to and from the protocol's message.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spec/plan.h"

namespace cadre {
namespace {

constexpr uint32_t kMostRanks = 1 << 20;

Layout LayoutFromProto(const v1::LayoutPlan& proto) {
  Layout layout;
  for (const v1::DimensionPlan& dim : proto.dimension()) {
    layout.split.emplace_back(dim.axes().begin(), dim.axes().end());
  }
  layout.partial_sum.assign(proto.partial_sum().begin(), proto.partial_sum().end());
  return layout;
}

v1::LayoutPlan LayoutToProto(const Layout& layout) {
  v1::LayoutPlan proto;
  for (const std::vector<std::string>& axes : layout.split) {
    v1::DimensionPlan* dim = proto.add_dimension();
    for (const std::string& axis : axes) dim->add_axes(axis);
  }
  for (const std::string& axis : layout.partial_sum) proto.add_partial_sum(axis);
  return proto;
}

absl::StatusOr<Mesh> MeshFromProto(const v1::Plan& proto) {
  std::vector<Mesh::Axis> axes;
  std::set<std::string> names;
  uint64_t ranks = 1;
  for (const v1::MeshAxis& axis : proto.mesh()) {
    ranks *= axis.size();
    if (axis.name().empty() || !names.insert(axis.name()).second || ranks == 0 ||
        ranks > kMostRanks) {
      return absl::InvalidArgumentError(absl::StrCat("mesh axis '", axis.name(), "' of size ",
                                                     axis.size(), " is malformed or named twice"));
    }
    axes.push_back({axis.name(), static_cast<int>(axis.size())});
  }
  return Mesh(std::move(axes));
}

}  // namespace

absl::StatusOr<Plan> PlanFromProto(const v1::Plan& proto, const ParameterIndex& index) {
  Plan plan;
  CADRE_ASSIGN_OR_RETURN(plan.mesh, MeshFromProto(proto));
  for (const v1::LayerPlan& layer : proto.layers()) {
    LayerLayouts layouts{.name = layer.layer(),
                         .input = LayoutFromProto(layer.input()),
                         .output = LayoutFromProto(layer.output())};
    for (const v1::ParameterLayout& parameter : layer.parameters()) {
      CADRE_RETURN_IF_ERROR(index.Find(parameter.parameter()).status());
      layouts.parameters.push_back(LayoutFromProto(parameter.layout()));
    }
    plan.layers.push_back(std::move(layouts));
  }
  for (const v1::BucketPlan& bucket : proto.buckets()) {
    Bucket made{.axes = {bucket.axes().begin(), bucket.axes().end()},
                .algorithm = bucket.algorithm()};
    for (const std::string& name : bucket.parameters()) {
      CADRE_ASSIGN_OR_RETURN(const int parameter, index.Find(name));
      made.parameters.push_back(parameter);
    }
    plan.buckets.push_back(std::move(made));
  }
  return plan;
}

v1::Plan PlanToProto(const Plan& plan, const ParameterIndex& index) {
  v1::Plan proto;
  for (const Mesh::Axis& axis : plan.mesh.axes()) {
    v1::MeshAxis* to = proto.add_mesh();
    to->set_name(axis.name);
    to->set_size(static_cast<uint32_t>(axis.size));
  }
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerLayouts& layer = plan.layers[l];
    v1::LayerPlan* to = proto.add_layers();
    to->set_layer(layer.name);
    *to->mutable_input() = LayoutToProto(layer.input);
    *to->mutable_output() = LayoutToProto(layer.output);
    for (const Parameter& parameter : index.parameters()) {
      if (parameter.layer != static_cast<int>(l)) continue;
      v1::ParameterLayout* layout = to->add_parameters();
      layout->set_parameter(parameter.name);
      *layout->mutable_layout() = LayoutToProto(layer.parameters[parameter.is_bias ? 1 : 0]);
    }
  }
  for (const Bucket& bucket : plan.buckets) {
    v1::BucketPlan* to = proto.add_buckets();
    for (const int parameter : bucket.parameters) to->add_parameters(index[parameter].name);
    for (const std::string& axis : bucket.axes) to->add_axes(axis);
    to->set_algorithm(bucket.algorithm);
  }
  return proto;
}

}  // namespace cadre
