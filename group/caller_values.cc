#include "group/caller_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/digest.h"
#include "base/status.h"
#include "member/agreement.h"
#include "model/opaque.h"

namespace cadre {
namespace {

v1::OpaqueModel ModelOf(const std::vector<CallerParameter>& parameters) {
  v1::OpaqueModel model;
  for (const CallerParameter& one : parameters) {
    v1::OpaqueParameter& parameter = *model.add_parameter();
    parameter.set_name(one.name);
    for (const uint64_t extent : one.shape) parameter.add_shape(extent);
    if (one.frozen_digest.empty()) {
      parameter.set_trained(one.trained);
    } else {
      parameter.set_frozen_digest(one.frozen_digest);
    }
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

// The number of the program's parameter in the index, or -1.
int FindInGraph(const ParameterIndex& index, const std::string& own_name) {
  for (const std::string& name : NamesInGraph(own_name)) {
    if (const absl::StatusOr<int> number = index.Find(name); number.ok()) return *number;
  }
  return -1;
}

// For each parameter of the program, its number in the index.
absl::StatusOr<std::vector<int>> FindAll(const ParameterIndex& index,
                                         const ParameterIndex& program) {
  std::vector<int> numbers;
  std::map<int, std::string> taken;
  for (const Parameter& own : program.parameters()) {
    const int found = FindInGraph(index, own.name);
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

// A collective. Returns the numbers of all members, in their order; all have equally many.
absl::StatusOr<std::vector<uint64_t>> GatherNumbers(std::span<const uint64_t> mine,
                                                    Communicator& group) {
  std::vector<uint64_t> all(mine.size() * group.size());
  std::copy(mine.begin(), mine.end(), all.begin() + mine.size() * group.index());
  std::vector<int64_t> offsets;
  for (int i = 0; i <= group.size(); ++i) offsets.push_back(mine.size_bytes() * i);
  CADRE_RETURN_IF_ERROR(group.AllGatherBytes(std::as_writable_bytes(std::span(all)), offsets));
  return all;
}

// A collective. Returns the intervals of all ranks.
absl::StatusOr<std::vector<std::vector<Interval>>> GatherIntervals(
    const std::vector<Interval>& mine, Communicator& group) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(Interval));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(bytes, group));
  std::vector<std::vector<Interval>> all;
  for (const std::string& text : texts) {
    std::vector<Interval>& intervals = all.emplace_back(text.size() / sizeof(Interval));
    std::memcpy(intervals.data(), text.data(), text.size());
  }
  return all;
}

}  // namespace

absl::StatusOr<CallerValues> CallerValues::Make(const std::vector<CallerParameter>& parameters,
                                                const v1::Model& model) {
  CallerValues values;
  CADRE_ASSIGN_OR_RETURN(values.index_, ParameterIndex::FromModel(model));
  const v1::OpaqueModel program = ModelOf(parameters);
  std::vector<const CallerParameter*> exchanged;
  for (const CallerParameter& parameter : parameters) {
    if (parameter.frozen_digest.empty()) {
      exchanged.push_back(&parameter);
    } else if (FindInGraph(values.index_, parameter.name) >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", parameter.name, "' is frozen in this program, but the run trains it"));
    }
  }
  std::vector<int> numbers(exchanged.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  if (model.has_opaque()) {
    const std::string difference = ParametersDifference(model.opaque(), program);
    if (!difference.empty()) return absl::InvalidArgumentError(difference);
  } else {
    CADRE_ASSIGN_OR_RETURN(numbers, FindAll(values.index_, ParameterIndex::FromOpaque(program)));
  }
  for (size_t i = 0; i < exchanged.size(); ++i) {
    const int64_t begin = values.index_[numbers[i]].offset;
    for (const CallerParameter::Part& part : exchanged[i]->parts) {
      if (part.elements.empty()) continue;
      values.held_.push_back({{begin + part.elements.begin, begin + part.elements.end},
                              {part.values, static_cast<size_t>(part.elements.size())}});
    }
  }
  std::sort(values.held_.begin(), values.held_.end(),
            [](const Owned& a, const Owned& b) { return a.positions.begin < b.positions.begin; });
  return values;
}

void CallerValues::SetAll(std::span<const float> version) {
  for (const Owned& held : held_) {
    const auto from = version.begin() + held.positions.begin;
    std::copy_n(from, held.values.size(), held.values.begin());
  }
}

const Parameter& CallerValues::ParameterAt(int64_t position) const {
  return *std::prev(std::partition_point(
      index_.parameters().begin(), index_.parameters().end(),
      [position](const Parameter& parameter) { return parameter.offset <= position; }));
}

absl::Status CallerValues::ElementError(int64_t position, absl::string_view what) const {
  const Parameter& parameter = ParameterAt(position);
  return absl::InvalidArgumentError(absl::StrCat("element ", position - parameter.offset,
                                                 " of parameter '", parameter.name, "' ", what));
}

// Between two neighbouring ends of intervals, the holders are the same.
absl::StatusOr<CallerValues::HeldBy> CallerValues::FindHolders(
    const std::vector<std::vector<Interval>>& held) const {
  std::vector<int64_t> cuts = {0, index_.size()};
  for (int rank = 0; rank < std::ssize(held); ++rank) {
    int64_t end = 0;
    for (const Interval& interval : held[rank]) {
      if (interval.begin < end) {
        return ElementError(interval.begin, absl::StrCat("belongs to rank ", rank, " twice"));
      }
      end = interval.end;
      cuts.insert(cuts.end(), {interval.begin, interval.end});
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  HeldBy held_by;
  // For each rank, its first interval that ends after the cut.
  std::vector<size_t> next(held.size());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < held.size(); ++rank) {
      const std::vector<Interval>& intervals = held[rank];
      size_t& at = next[rank];
      while (at < intervals.size() && intervals[at].end <= cuts[i]) ++at;
      if (at < intervals.size() && intervals[at].begin <= cuts[i]) ranks.push_back(rank);
    }
    if (ranks.empty()) return ElementError(cuts[i], "belongs to no rank");
    held_by[ranks].push_back({cuts[i], cuts[i + 1]});
  }
  return held_by;
}

std::span<float> CallerValues::Memory(Interval positions) const {
  const auto after = std::partition_point(held_.begin(), held_.end(), [&](const Owned& held) {
    return held.positions.begin <= positions.begin;
  });
  const Owned& held = *std::prev(after);
  return held.values.subspan(positions.begin - held.positions.begin, positions.size());
}

absl::Status CallerValues::Divide(Transport& transport) {
  Communicator group = WholeGroup(transport);
  std::vector<Interval> mine;
  for (const Owned& held : held_) mine.push_back(held.positions);
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::vector<Interval>> all,
                         GatherIntervals(mine, group));
  CADRE_ASSIGN_OR_RETURN(const HeldBy held_by, FindHolders(all));
  for (const auto& [ranks, intervals] : held_by) {
    if (!std::binary_search(ranks.begin(), ranks.end(), group.index())) continue;
    if (ranks.size() > 1) {
      Share(transport, ranks, intervals);
      continue;
    }
    for (const Interval& interval : intervals) owned_.push_back({interval, Memory(interval)});
  }
  std::sort(owned_.begin(), owned_.end(),
            [](const Owned& a, const Owned& b) { return a.positions.begin < b.positions.begin; });
  return absl::OkStatus();
}

void CallerValues::Share(Transport& transport, const std::vector<int>& ranks,
                         const std::vector<Interval>& intervals) {
  Shared& shared = *shared_.emplace_back(std::make_unique<Shared>(transport, ranks));
  int64_t size = 0;
  for (const Interval& interval : intervals) size += interval.size();
  shared.values.resize(size);
  const int64_t holders = shared.holders.size();
  for (int64_t i = 0; i <= holders; ++i) shared.offsets.push_back(size * i / holders);
  const int index = shared.holders.index();
  const Interval mine{shared.offsets[index], shared.offsets[index + 1]};
  int64_t begin = 0;
  for (const Interval& interval : intervals) {
    shared.parts.push_back(Memory(interval));
    shared.positions.push_back(interval.begin);
    const Interval part = Intersect({begin, begin + interval.size()}, mine);
    if (!part.empty()) {
      const int64_t first = interval.begin + part.begin - begin;
      owned_.push_back({{first, first + part.size()},
                        std::span(shared.values).subspan(part.begin, part.size())});
    }
    begin += interval.size();
  }
}

int64_t CallerValues::CopiedBytes() const {
  size_t elements = 0;
  for (const auto& shared : shared_) elements += shared->values.size();
  return static_cast<int64_t>(elements * sizeof(float));
}

void CallerValues::TakeShared() {
  for (const auto& shared : shared_) {
    auto to = shared->values.begin();
    for (const std::span<float> part : shared->parts) to = std::copy(part.begin(), part.end(), to);
  }
}

absl::Status CallerValues::GiveShared() {
  for (const auto& shared : shared_) {
    CADRE_RETURN_IF_ERROR(shared->holders.AllGather(std::span(shared->values), shared->offsets));
    auto from = shared->values.begin();
    for (const std::span<float> part : shared->parts) {
      std::copy_n(from, part.size(), part.begin());
      from += part.size();
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> CallerValues::Digests(const Shared& shared) const {
  std::vector<uint64_t> digests;
  std::span<const float> values = shared.values;
  for (size_t i = 0; i < shared.parts.size(); ++i) {
    const bool trained = !IsStatistic(ParameterAt(shared.positions[i]).role);
    const size_t size = shared.parts[i].size();
    digests.push_back(trained ? Digest(values.first(size), shared.positions[i]) : 0);
    values = values.subspan(size);
  }
  return digests;
}

absl::Status CallerValues::CheckEqual(Shared& shared) {
  const std::vector<uint64_t> digests = Digests(shared);
  const uint64_t sum = std::accumulate(digests.begin(), digests.end(), uint64_t{0});
  CADRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> sums,
                         GatherNumbers(std::span(&sum, 1), shared.holders));
  const bool equal = std::all_of(sums.begin(), sums.end(),
                                 [&sums](uint64_t other) { return other == sums.front(); });
  return equal ? absl::OkStatus() : Difference(shared, digests);
}

absl::Status CallerValues::Difference(Shared& shared, const std::vector<uint64_t>& digests) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, GatherNumbers(digests, shared.holders));
  for (size_t i = 0; i < digests.size(); ++i) {
    for (int holder = 1; holder < shared.holders.size(); ++holder) {
      if (all[holder * digests.size() + i] == all[i]) continue;
      const std::vector<int>& ranks = shared.holders.members();
      return absl::OutOfRangeError(
          absl::StrCat("parameter '", ParameterAt(shared.positions[i]).name,
                       "' has other values on rank ", ranks[holder], " than on rank ", ranks[0],
                       "; the ranks of a program must have equal values, as those of "
                       "DistributedDataParallel, or "
                       "shards that are DTensors, as those of fully_shard"));
    }
  }
  return absl::InternalError("digests of the ranks differ, but not those of their parameters");
}

absl::Status CallerValues::CheckShared() {
  absl::Status first;
  // All holders of an interval take part, even after an error in another one.
  for (const auto& shared : shared_) {
    const absl::Status checked = CheckEqual(*shared);
    if (!checked.ok() && !absl::IsOutOfRange(checked)) return checked;
    first.Update(checked);
  }
  return first;
}

absl::Status CallerValues::CheckFinite() const {
  for (const Owned& owned : owned_) {
    for (size_t i = 0; i < owned.values.size(); ++i) {
      if (std::isfinite(owned.values[i])) continue;
      const int64_t position = owned.positions.begin + static_cast<int64_t>(i);
      const Parameter& parameter = ParameterAt(position);
      return absl::OutOfRangeError(absl::StrCat("element ", position - parameter.offset,
                                                " of parameter '", parameter.name, "' is ",
                                                owned.values[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
