// What versions must be: the expected values of every version, computed from the contributions of
// its participants, and whether these contain exactly the training that they claim. Also what
// workers may do.
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/weighted_sums.h"
#include "model/coding.h"
#include "model/frame.h"
#include "proto/enum_text.h"
#include "server/mean.h"
#include "server/outer_update.h"
#include "tests/simulation/describe.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/stored_records.h"

namespace cadre::simulation {
namespace {

// The values of these positions, in order, and the reverse.
Values Gather(const std::vector<Interval>& positions, const Values& from) {
  Values values;
  for (const Interval& part : positions) {
    values.insert(values.end(), from.begin() + part.begin, from.begin() + part.end);
  }
  return values;
}
void Scatter(const std::vector<Interval>& positions, const Values& values, Values& to) {
  auto from = values.begin();
  for (const Interval& part : positions) {
    std::copy_n(from, part.size(), to.begin() + part.begin);
    from += part.size();
  }
}

std::vector<Interval> Whole(const Values& values) { return {{0, std::ssize(values)}}; }

}  // namespace

// Also sets the states of the version (server/round_mean.cc has the formulas of coded rounds).
Values Invariants::ValuesOf(const v1::RunRecord& run, const v1::CommitRecord& commit) {
  if (commit.has_restores()) {
    auto& states = outer_states_[run.run()];
    const auto restored = states.find(commit.restores());
    if (restored != states.end()) states[commit.round()] = restored->second;
    return versions_[commit.run()][commit.restores()];
  }
  Values version = versions_[commit.run()][commit.round() - 1];
  const std::vector<Interval> positions = PositionsOf(run.spec(), commit.fragment());
  std::array<Values, 3> states;
  const auto before = outer_states_[run.run()].find(commit.round() - 1);
  if (before != outer_states_[run.run()].end()) states = before->second;
  for (Values& state : states) state.resize(version.size());
  const Values base = Gather(positions, version);
  std::array<Values, 3> exchanged;
  for (size_t i = 0; i < states.size(); ++i) exchanged[i] = Gather(positions, states[i]);
  const Values next = MeanOf(run, commit, positions, base, exchanged);
  for (size_t i = 0; i < states.size(); ++i) Scatter(positions, exchanged[i], states[i]);
  if (commit.has_outer() || commit.has_down()) {
    outer_states_[run.run()][commit.round()] = std::move(states);
  }
  Scatter(positions, next, version);
  return version;
}

Values Invariants::MeanOf(const v1::RunRecord& run, const v1::CommitRecord& commit,
                          const std::vector<Interval>& positions, const Values& base,
                          std::array<Values, 3>& states) {
  Values& residual = states[2];
  std::vector<uint64_t> samples;
  for (const v1::Participant& in : commit.participants()) samples.push_back(in.samples());
  const std::vector<float> weights = MeanWeights(samples);
  Values next(base.size());
  for (int i = 0; i < commit.participants_size(); ++i) {
    const v1::Participant& in = commit.participants(i);
    Values all = contributions_[{commit.run(), commit.round(), in.group(), in.generation()}];
    all.resize(versions_[commit.run()][0].size());
    (i == 0 ? SetWeighted : AddWeighted)(weights[i], Gather(positions, all), next);
  }
  Values exact = base;
  if (commit.has_down()) AddWeighted(1, residual, exact);
  if (commit.has_up()) {
    AddWeighted(1, exact, next);
  } else if (commit.has_down()) {
    AddWeighted(1, residual, next);
  }
  if (commit.has_outer()) {
    OuterUpdate(commit.outer(), commit.round()).Update(exact, next, {states[0], states[1]});
  }
  if (!commit.has_down()) return next;
  Values difference(base.size());
  for (size_t i = 0; i < base.size(); ++i) difference[i] = next[i] - base[i];
  std::string frame;
  const std::vector<ExchangeUnit> units = UnitsOf(run.spec())->In(positions);
  const Codec codec = CodecOf(commit.down());
  absl::Status coded = EncodeFrame(units, codec, difference, &frame);
  coded.Update(DecodeFrame(units, codec, frame, &difference));
  if (!coded.ok())
    world_.Violate(commit.run(), ": version ", commit.round(),
                   " cannot be coded: ", coded.ToString());
  for (size_t i = 0; i < base.size(); ++i) {
    const float published = base[i] + difference[i];
    residual[i] = next[i] - published;
    next[i] = published;
  }
  return next;
}

// A coordinator with an older store may wait for the first attempt at a round of which another one
// has ordered a further attempt.
void Invariants::CheckDigests(const v1::CommitRecord& commit) {
  const std::pair<std::string, uint32_t> version(commit.run(), commit.round());
  const auto run = versions_.find(commit.run());
  if (run == versions_.end() || run->second.count(commit.round()) == 0) return;
  const auto first = first_attempts_.find(version);
  const bool is_first = restored_.contains(commit.run()) && !commit.committed() &&
                        first != first_attempts_.end() && !SameMaking(closed_[version], commit) &&
                        SameMaking(first->second.closed, commit);
  const Values& values = is_first ? first->second.values : run->second[commit.round()];
  const uint32_t shards = shards_[commit.run()];
  for (const v1::ShardDigest& shard : commit.digests()) {
    if (!shard.applied()) {
      if (commit.committed())
        world_.Violate(Describe(commit), " is committed, but not applied by every shard");
      continue;
    }
    const uint64_t expected =
        DigestOf(values, {SpanOfShard(specs_[commit.run()], shard.shard(), shards)});
    if (shard.digest() != expected) {
      world_.Violate(Describe(commit), ": shard ", shard.shard(), " has digest ",
                     DigestHex(shard.digest()), ", but its participants give ",
                     DigestHex(expected));
    }
  }
  // Not known for a rebuilt record if a shard has the next version already.
  if (commit.digest() == 0 && restored_.contains(commit.run())) return;
  if (commit.committed() && commit.digest() != DigestOf(values, Whole(values))) {
    world_.Violate(Describe(commit), " has digest ", DigestHex(commit.digest()),
                   ", but its participants give ", DigestHex(DigestOf(values, Whole(values))));
  }
}

bool Invariants::WrittenVersions::AllStore(const std::pair<std::string, uint32_t>& version) const {
  const auto written = by.find(version);
  return written != by.end() && absl::c_all_of(written->second, [this](const auto& writer) {
           return writer.second && !damaged.contains(writer.first);
         });
}

void Invariants::WrittenVersions::Lose(const std::string& aggregator) {
  for (auto& [version, writers] : by) {
    const auto writer = writers.find(aggregator);
    if (writer != writers.end()) writer->second = false;
  }
}

// A run whose older record names another aggregator, or one that the shard has left since,
// continues there, whatever versions the aggregator has that it does not name.
void Invariants::ChooseRival(const std::string& aggregator,
                             const std::pair<std::string, uint32_t>& version, Interval span,
                             const Values& values) {
  const auto written = written_.by.find(version);
  const bool continues_elsewhere =
      restored_.contains(version.first) && written != written_.by.end() &&
      (!written->second.contains(aggregator) || moved_.left.contains({version.first, aggregator}));
  if (written_.AllStore(version) && !continues_elsewhere) return;
  const std::vector<Interval> whole = {{0, span.size()}};
  for (Rival& rival : rivals_[version]) {
    const Values part(rival.values.begin() + span.begin, rival.values.begin() + span.end);
    if (DigestOf(values, whole) != DigestOf(part, whole)) continue;
    std::swap(rival.closed, closed_[version]);
    std::swap(rival.values, versions_[version.first][version.second]);
    return;
  }
}

// A shard that was restored from a seed begins with states of zero.
void Invariants::OnStaged(const std::string& aggregator, const v1::ContributionHeader& header,
                          const Values& values) {
  const ContributionKey key = ContributionKey::Of(header);
  record_checks_.OnStaged(header);
  if (!header.seed() && header.ranges_size() > 0) RecordContribution(header, values);
  acknowledged_.insert({key, aggregator});
  kept_.insert({key, aggregator});
}

void Invariants::RecordContribution(const v1::ContributionHeader& header, const Values& values) {
  const v1::RunSpec& spec = specs_[header.run()];
  const std::vector<int64_t> begins = TensorBegins(spec);
  std::vector<Interval> positions;
  for (const v1::Range& range : header.ranges()) {
    const int64_t begin = begins[range.tensor()];
    const Interval part(begin + static_cast<int64_t>(range.begin()),
                        begin + static_cast<int64_t>(range.end()));
    // Units may consist of several tensors.
    if (!positions.empty() && positions.back().end == part.begin) {
      positions.back().end = part.end;
    } else {
      positions.push_back(part);
    }
  }
  Values& all = contributions_[{header.run(), header.round(), header.group(), header.generation()}];
  all.resize(begins.back());
  if (header.frame_elements() == 0) {
    Scatter(positions, values, all);
    conservation_.Check(header, positions, all);
    CheckTraining(header, positions, all);
    return;
  }
  Values change;
  const absl::Status decoded = DecodeFrame(
      UnitsOf(spec)->In(positions), CodecOf(*CodingOf(spec.averaging().up())),
      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, &change);
  if (!decoded.ok()) {
    world_.Violate(ContributionKey::Of(header).ToString(), " is malformed: ", decoded.ToString());
    return;
  }
  world_.Count("frames_staged");
  Scatter(positions, change, all);
  conservation_.Check(header, positions, all);
}

void Invariants::CheckTraining(const v1::ContributionHeader& header,
                               const std::vector<Interval>& positions, const Values& values) {
  const v1::Averaging& averaging = specs_[header.run()].averaging();
  // Contributions then contain late changes, those of other fragments, or a share of their own.
  if (averaging.has_staleness() || FragmentsOf(averaging) > 1 || averaging.overlap().has_blend()) {
    return;
  }
  const auto& versions = versions_[header.run()];
  const auto before = versions.find(header.base_version());
  // An older record of the run does not have the version.
  if (before == versions.end()) return;
  const double steps =
      static_cast<double>(header.samples()) / specs_[header.run()].batch_per_group();
  for (const Interval& part : positions) {
    for (int64_t p = part.begin; p < part.end; ++p) {
      const double trained = values[p] - before->second[p];
      const double expected = steps * StepChange(header.group(), header.generation(), p);
      if (std::abs(trained - expected) <= 1e-3 * (1 + std::abs(values[p]))) continue;
      world_.Violate(ContributionKey::Of(header).ToString(), " changes the value at ", p, " by ",
                     trained, ", but ", steps, " steps change it by ", expected);
      return;
    }
  }
}

void Invariants::OnVersionWritten(const std::string& aggregator, const std::string& run,
                                  uint32_t version, Interval span, const Values& values) {
  const std::string name = absl::StrCat("version ", version, " of ", run);
  world_.Count("shard_versions_checked");
  const auto versions = versions_.find(run);
  if (versions == versions_.end() || versions->second.count(version) == 0) {
    return world_.Violate(aggregator, " writes ", name, ", which has no commit record");
  }
  const Values& expected = versions->second[version];
  const std::vector<Interval> whole = {{0, span.size()}};
  const auto equal = [&](const Values& made) {
    const Values part(made.begin() + span.begin, made.begin() + span.end);
    return DigestOf(values, whole) == DigestOf(part, whole);
  };
  const auto matches = [&] { return equal(expected); };
  const auto first = first_attempts_.find({run, version});
  // Also by an aggregator that has hung, and from which the shard has moved.
  const bool may_be_late =
      !committed_.contains({run, version}) || moved_.left.contains({run, aggregator});
  if (!matches() && first != first_attempts_.end() && may_be_late && equal(first->second.values)) {
    return world_.Count("first_attempts_written_late");
  }
  if (!matches()) ChooseRival(aggregator, {run, version}, span, values);
  written_.by[{run, version}][aggregator] = true;
  if (matches()) return;
  // A record that was rebuilt may have no digest with which the aggregator compares them.
  if (IsRestored(run) && world_.corrupted.contains({run, version})) return;
  world_.Violate(aggregator, " writes ", name,
                 " with other values than the mean of its participants");
}

void Invariants::OnHeld(const v1::RankSlot& place, uint32_t version, const Values& values,
                        const std::vector<Interval>& owned) {
  world_.Count("versions_adopted");
  if (committed_.count({place.run(), version}) == 0) {
    world_.Violate(Describe(place), " holds version ", version, ", which is not committed");
    return;
  }
  const Values& expected = versions_[place.run()][version];
  if (DigestOf(values, owned) != DigestOf(expected, owned)) {
    world_.Violate(Describe(place), " holds other values than those of version ", version);
  }
}

// ---- Workers

// If the record of the run has no digest of a restored shard, or an aggregator that has lost its
// newest files has the first attempt at a round, which the coordinator finds when it returns.
bool Invariants::MayPullWrongValues(const std::string& run) const {
  const bool has_first_attempt = absl::c_any_of(first_attempts_, [&](const auto& attempt) {
    const auto writers = written_.by.find(attempt.first);
    return attempt.first.first == run && writers != written_.by.end() &&
           absl::c_any_of(writers->second,
                          [&](const auto& writer) { return HasLostDisk(writer.first); });
  });
  const bool is_corrupted =
      absl::c_any_of(world_.corrupted, [&](const auto& version) { return version.first == run; });
  return (IsRestored(run) && is_corrupted) || has_first_attempt;
}

void Invariants::OnFailed(const v1::RankSlot& place, const std::string& host,
                          v1::FailureCause cause) {
  world_.Count(absl::StrCat("failures_", EnumText(cause)));
  Failures& failures = failures_[place.run()];
  if (cause == v1::FAILURE_CAUSE_DIVERGED) failures.diverged.insert(place.generation());
  const bool permanent = cause == v1::FAILURE_CAUSE_DATA || cause == v1::FAILURE_CAUSE_MEMORY;
  if (permanent) failures.hosts[cause].insert(host);
}

void Invariants::OnTraining(const v1::RankSlot& place, bool begins) {
  const auto key = std::make_tuple(place.run(), place.group(), place.generation(), place.rank());
  if (!begins) {
    training_.erase(key);
    return;
  }
  if (!training_.insert(key).second) world_.Violate("two workers train as ", Describe(place));
  const auto it = generations_.find(place.generation());
  if (it == generations_.end() || !it->second.started ||
      it->second.group != GroupKey{place.run(), place.group()}) {
    world_.Violate(Describe(place), " trains, but its generation never started");
  }
}

// ---- Contributions that aggregators hold

void Invariants::OnContributionsRemoved(const std::string& aggregator,
                                        const std::function<bool(const ContributionKey&)>& holds,
                                        const std::function<bool(const ContributionKey&)>& may_be) {
  std::erase_if(kept_, [&](const auto& kept) {
    if (kept.second != aggregator || holds(kept.first)) return false;
    // An older record does not contain the generations that were formed since. An aggregator that a
    // shard has left may crash while it removes its files.
    const bool forgotten = restored_.contains(kept.first.run) && IsForgotten(kept.first.generation);
    const bool may_be_left = moved_.left.contains({kept.first.run, aggregator});
    if (!forgotten && !may_be_left && !may_be(kept.first)) {
      world_.Violate(aggregator, " has lost ", kept.first.ToString(),
                     ", which it had acknowledged and not applied");
    }
    return true;
  });
}

// An older record may name the aggregators from which shards have moved.
bool Invariants::HasLostDisk(const v1::RunRecord& run) const {
  const auto is_lost = [&](const auto& moved) {
    return moved.first == run.run() && HasLostDisk(moved.second);
  };
  return absl::c_any_of(run.shards(),
                        [this](const std::string& name) { return HasLostDisk(name); }) ||
         absl::c_any_of(moved_.left, is_lost) || absl::c_any_of(moved_.reached, is_lost);
}

void Invariants::OnDiskLost(const std::string& aggregator, bool is_damaged) {
  lost_disks_.insert(aggregator);
  if (is_damaged) written_.damaged.insert(aggregator);
  written_.Lose(aggregator);
  std::erase_if(kept_, [&](const auto& kept) { return kept.second == aggregator; });
}

}  // namespace cadre::simulation
