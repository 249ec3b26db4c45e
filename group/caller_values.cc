#include "group/caller_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "model/opaque.h"
#include "worker/train/agreement.h"

namespace cadre {
namespace {

v1::OpaqueModel ModelOf(const std::vector<CallerParameter>& parameters) {
  v1::OpaqueModel model;
  for (const CallerParameter& one : parameters) {
    v1::OpaqueParameter& parameter = *model.add_parameter();
    parameter.set_name(one.name);
    for (const uint64_t extent : one.shape) parameter.add_shape(extent);
    parameter.set_trained(one.trained);
  }
  return model;
}

// The layer's names of what PyTorch calls differently in norms.
std::vector<std::string> NamesInGraph(const std::string& name) {
  const std::string path = absl::StrReplaceAll(name, {{".", "/"}});
  std::vector<std::string> names = {name, path};
  for (const auto& [torch, layer] : {std::pair{"/weight", "/scale"},
                                     {"/bias", "/shift"},
                                     {"/running_var", "/running_variance"}}) {
    if (!absl::EndsWith(path, torch)) continue;
    names.push_back(absl::StrCat(path.substr(0, path.size() - strlen(torch)), layer));
  }
  return names;
}

// For each parameter of the program, its number in the index.
absl::StatusOr<std::vector<int>> FindAll(const ParameterIndex& index,
                                         const ParameterIndex& program) {
  std::vector<int> numbers;
  std::map<int, std::string> taken;
  for (const Parameter& own : program.parameters()) {
    int found = -1;
    for (const std::string& name : NamesInGraph(own.name)) {
      const absl::StatusOr<int> number = index.Find(name);
      if (found < 0 && number.ok()) found = *number;
    }
    if (found < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model of the run has no parameter '", own.name, "'"));
    }
    const Parameter& parameter = index[found];
    if (parameter.shape.elements() != own.shape.elements() ||
        (parameter.shape.rank() == own.shape.rank() && parameter.shape != own.shape)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", own.name, "' has shape ", own.shape.ToString(), " in this program, but '",
          parameter.name, "' has ", parameter.shape.ToString(), " in the run"));
    }
    if (const auto [it, is_new] = taken.try_emplace(found, own.name); !is_new) {
      return absl::InvalidArgumentError(absl::StrCat("parameters '", it->second, "' and '",
                                                     own.name, "' are both '", parameter.name,
                                                     "' of the run"));
    }
    numbers.push_back(found);
  }
  for (int i = 0; i < std::ssize(index.parameters()); ++i) {
    if (taken.contains(i)) continue;
    return absl::InvalidArgumentError(absl::StrCat("this program has no parameter '", index[i].name,
                                                   "' ", index[i].shape.ToString(),
                                                   ", which the run has"));
  }
  return numbers;
}

}  // namespace

absl::StatusOr<CallerValues> CallerValues::Make(const std::vector<CallerParameter>& parameters,
                                                const v1::Model& model, int rank, int ranks) {
  CallerValues values;
  values.rank_ = rank;
  CADRE_ASSIGN_OR_RETURN(values.index_, ParameterIndex::FromModel(model));
  const ParameterIndex program = ParameterIndex::FromOpaque(ModelOf(parameters));
  std::vector<int> numbers;
  if (model.has_opaque()) {
    const std::string difference = ParametersDifference(values.index_, program);
    if (!difference.empty()) return absl::InvalidArgumentError(difference);
    for (int i = 0; i < std::ssize(parameters); ++i) numbers.push_back(i);
  } else {
    CADRE_ASSIGN_OR_RETURN(numbers, FindAll(values.index_, program));
  }
  // Position in the run of what begins at each position of the copy.
  std::vector<int64_t> places;
  int64_t shared = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const CallerParameter& parameter = parameters[i];
    const int64_t begin = values.index_[numbers[i]].offset;
    const int64_t size = program[static_cast<int>(i)].shape.elements();
    if (parameter.values == nullptr) {
      for (const CallerParameter::Part& part : parameter.parts) {
        values.owned_.push_back({{begin + part.elements.begin, begin + part.elements.end},
                                 {part.values, static_cast<size_t>(part.elements.size())}});
      }
    } else if (ranks == 1) {
      values.owned_.push_back(
          {{begin, begin + size}, {parameter.values, static_cast<size_t>(size)}});
    } else {
      values.tensors_.push_back({parameter.values, {shared, shared + size}});
      places.push_back(begin);
      shared += size;
    }
  }
  values.shared_.resize(shared);
  for (int i = 0; i <= ranks; ++i) values.offsets_.push_back(shared * i / ranks);
  const Interval mine{values.offsets_[rank], values.offsets_[rank + 1]};
  for (size_t i = 0; i < values.tensors_.size(); ++i) {
    const Interval positions = values.tensors_[i].positions;
    const Interval part = Intersect(positions, mine);
    if (part.empty()) continue;
    const int64_t begin = places[i] + part.begin - positions.begin;
    values.owned_.push_back(
        {{begin, begin + part.size()}, std::span(values.shared_).subspan(part.begin, part.size())});
  }
  std::erase_if(values.owned_, [](const Owned& owned) { return owned.positions.empty(); });
  std::sort(values.owned_.begin(), values.owned_.end(),
            [](const Owned& a, const Owned& b) { return a.positions.begin < b.positions.begin; });
  return values;
}

absl::Status CallerValues::CheckPartition(Communicator& group) const {
  std::vector<Interval> mine;
  for (const Owned& owned : owned_) mine.push_back(owned.positions);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(Interval));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(bytes, group));
  std::vector<std::pair<Interval, int>> all;
  for (int rank = 0; rank < std::ssize(texts); ++rank) {
    std::vector<Interval> intervals(texts[rank].size() / sizeof(Interval));
    std::memcpy(intervals.data(), texts[rank].data(), texts[rank].size());
    for (const Interval& interval : intervals) all.emplace_back(interval, rank);
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  const auto fail = [this](int64_t position, const std::string& what) {
    for (const Parameter& parameter : index_.parameters()) {
      if (position >= parameter.end()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "element ", position - parameter.offset, " of parameter '", parameter.name, "' ", what));
    }
    return absl::InternalError("a position outside the model");
  };
  int64_t next = 0;
  int before = 0;
  for (const auto& [interval, rank] : all) {
    if (interval.begin > next) return fail(next, "belongs to no rank");
    if (interval.begin < next) {
      return fail(interval.begin, absl::StrCat("belongs to rank ", before, " and to rank ", rank));
    }
    next = interval.end;
    before = rank;
  }
  return next == index_.size() ? absl::OkStatus() : fail(next, "belongs to no rank");
}

void CallerValues::TakeShared() {
  const Interval mine{offsets_[rank_], offsets_[rank_ + 1]};
  for (const Shared& tensor : tensors_) {
    const Interval part = Intersect(tensor.positions, mine);
    if (part.empty()) continue;
    std::copy_n(tensor.values + (part.begin - tensor.positions.begin), part.size(),
                shared_.begin() + part.begin);
  }
}

absl::Status CallerValues::GiveShared(Communicator& group) {
  if (tensors_.empty()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(group.AllGather(std::span(shared_), offsets_));
  for (const Shared& tensor : tensors_) {
    std::copy_n(shared_.begin() + tensor.positions.begin, tensor.positions.size(), tensor.values);
  }
  return absl::OkStatus();
}

absl::Status CallerValues::CheckFinite() const {
  for (const Owned& owned : owned_) {
    for (size_t i = 0; i < owned.values.size(); ++i) {
      if (std::isfinite(owned.values[i])) continue;
      const int64_t position = owned.positions.begin + static_cast<int64_t>(i);
      const v1::Range range = index_.RangesOf(position, position + 1).front();
      return absl::OutOfRangeError(absl::StrCat("element ", range.begin(), " of parameter '",
                                                index_[static_cast<int>(range.tensor())].name,
                                                "' is ", owned.values[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
