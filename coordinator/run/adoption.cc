#include "coordinator/run/adoption.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <compare>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/validate.h"

namespace cadre {
namespace {

using google::protobuf::util::MessageDifferencer;

// Reports by shard, with the names of the aggregators.
using ByShard = std::map<uint32_t, const RunReports::value_type*>;

// What an aggregator stores that no coordinator has sent; empty if nothing. It completes a sentence
// that begins with the aggregator's name.
std::string FindMalformed(const std::string& run, const v1::RunReport& report) {
  // The bits that Submit adds to the id of the run.
  constexpr size_t kLineageDigits = 16;
  const v1::OpenRun& open = report.open();
  const v1::ShardState& state = report.state();
  if (run != RunId(RunNumber(run), open.spec().name())) return "stores a run of another name";
  if (!absl::StartsWith(open.lineage(), absl::StrCat(run, ".")) ||
      open.lineage().size() != run.size() + 1 + kLineageDigits) {
    return "stores a malformed lineage";
  }
  if (open.shard() >= open.shards()) {
    return absl::StrCat("stores shard ", open.shard(), " of ", open.shards());
  }
  for (const auto& [group, generation] : open.generations()) {
    if (generation > kMaxReportedNumber) return absl::StrCat("stores generation ", generation);
  }
  if (state.run().empty()) return absl::StrCat("has lost the values of shard ", open.shard());
  if (state.run() != run || state.lineage() != open.lineage() || state.shard() != open.shard()) {
    return "stores values of another run or shard";
  }
  if (state.version() > 0 && report.newest().round() != state.version()) {
    return absl::StrCat("does not store the order that made version ", state.version());
  }
  const uint32_t groups = report.newest().division().groups();
  if (report.newest().has_division() && (groups == 0 || groups > kMaxGroups)) {
    return absl::StrCat("stores a division among ", groups, " groups");
  }
  return "";
}

// The newest generation and the version that the aggregator was ordered to open: after a move, the
// coordinator sends newer ones only to the aggregator that the shard has moved to.
std::pair<uint32_t, uint32_t> OpenedAt(const v1::OpenRun& open) {
  uint32_t newest = 0;
  for (const auto& [group, generation] : open.generations()) newest = std::max(newest, generation);
  return {newest, open.version()};
}

// Whether the aggregator's shard holds nothing that was trained and contradicts the one with the
// newest version: it was opened before the choice of aggregators changed, or by a coordinator whose
// store was older than the run. Or whether another aggregator has the same shard at a later
// version, or the same version: the shard has moved there, or was to move from there.
bool IsLeftover(const RunReports::value_type& entry, const RunReports& reports) {
  const auto& [name, report] = entry;
  const v1::OpenRun& open = report.open();
  const v1::ShardState& state = report.state();
  return std::any_of(reports.begin(), reports.end(), [&](const auto& one) {
    const v1::OpenRun& other = one.second.open();
    const v1::ShardState& held = one.second.state();
    if (held.version() == 0 || other.lineage() != open.lineage()) return false;
    const bool same = other.shards() == open.shards() && other.shard() == open.shard();
    if (state.version() == 0) return same || other.shards() != open.shards();
    if (!same) return false;
    if (held.version() != state.version()) return held.version() > state.version();
    return held.digest() == state.digest() &&
           std::pair(OpenedAt(other), name) > std::pair(OpenedAt(open), one.first);
  });
}

// Fills in `shards`. Returns why the reports do not amount to a run, or an empty text.
std::string Collect(const std::string& run, const RunReports& reports, ByShard& shards) {
  if (const uint32_t number = RunNumber(run); number == 0 || number > kMaxReportedNumber) {
    return "this is not the id of a run";
  }
  for (const auto& entry : reports) {
    const auto& [name, report] = entry;
    if (const std::string wrong = FindMalformed(run, report); !wrong.empty()) {
      return absl::StrCat(name, " ", wrong);
    }
    const v1::OpenRun& open = report.open();
    const auto& [first_name, first] = *reports.begin();
    if (open.lineage() != first.open().lineage() || open.shards() != first.open().shards() ||
        !MessageDifferencer::Equals(open.spec(), first.open().spec())) {
      return absl::StrCat(first_name, " and ", name,
                          " store different runs of this id, of lineages ", first.open().lineage(),
                          " and ", open.lineage());
    }
    if (const auto [it, added] = shards.emplace(open.shard(), &entry); !added) {
      return absl::StrCat("shard ", open.shard(), " is stored by ", it->second->first, " and by ",
                          name);
    }
  }
  const uint32_t count = reports.begin()->second.open().shards();
  for (uint32_t shard = 0; shard < count; ++shard) {
    if (shards.contains(shard)) continue;
    return absl::StrCat("shard ", shard, " of ", count, " is missing: start its aggregator");
  }
  return "";
}

// A screened round makes its version again until it is published. A shard that has it by an earlier
// attempt than another shard counts as one with the version before, and makes it again.
void TakeBackEarlierAttempts(RunReports& reports) {
  uint32_t round = 0;
  for (const auto& [name, report] : reports) round = std::max(round, report.newest().round());
  uint32_t last = 0;
  for (const auto& [name, report] : reports) {
    if (report.newest().round() == round) last = std::max(last, report.newest().attempt());
  }
  for (auto& [name, report] : reports) {
    const v1::Apply& newest = report.newest();
    v1::ShardState& state = *report.mutable_state();
    if (newest.round() != round || state.version() != round) continue;
    if (newest.attempt() >= last || !report.has_before()) continue;
    state.set_version(round - 1);
    state.set_digest(report.before_digest());
    report.mutable_newest()->Swap(report.mutable_before());
    if (round == 1) report.clear_newest();
  }
}

// The order that made the version, from a shard that has it; preferably not one that restored it.
v1::Apply OrderOf(uint32_t version, const ByShard& shards) {
  v1::Apply order;
  for (const auto& [shard, entry] : shards) {
    const v1::Apply& newest = entry->second.newest();
    if (newest.round() != version || (order.round() == version && newest.seed())) continue;
    if (order.round() != version || order.seed()) order = newest;
  }
  return order;
}

// Which two shards have made the version of different contributions; empty if none have. Two
// coordinators may have closed a round differently.
std::string ContradictionIn(uint32_t version, const ByShard& shards) {
  std::string first;
  const std::string* of_first = nullptr;
  for (const auto& [shard, entry] : shards) {
    const v1::Apply& newest = entry->second.newest();
    const bool known = !newest.participants().empty() || newest.has_restores();
    if (newest.round() != version || newest.seed() || !known) continue;
    v1::Apply order;
    *order.mutable_participants() = newest.participants();
    if (newest.has_restores()) order.set_restores(newest.restores());
    std::string participants = order.SerializeAsString();
    if (of_first == nullptr) {
      first = std::move(participants);
      of_first = &entry->first;
    } else if (participants != first) {
      return absl::StrCat(*of_first, " and ", entry->first, " have made version ", version,
                          " of different contributions");
    }
  }
  return "";
}

v1::CommitRecord CommitOf(const std::string& run, uint32_t version, const v1::Apply& order) {
  v1::CommitRecord commit;
  commit.set_run(run);
  commit.set_round(version);
  // The participants of a seed are the group that has restored the version.
  if (!order.seed()) *commit.mutable_participants() = order.participants();
  for (const v1::Participant& participant : commit.participants()) {
    commit.set_samples(commit.samples() + participant.samples());
  }
  commit.set_step(order.step());
  if (order.has_division()) *commit.mutable_division() = order.division();
  if (order.has_outer()) *commit.mutable_outer() = order.outer();
  if (order.has_up()) *commit.mutable_up() = order.up();
  if (order.has_down()) *commit.mutable_down() = order.down();
  commit.set_fragment(order.fragment());
  *commit.mutable_included() = order.included();
  commit.set_run_samples(order.samples());
  if (order.has_restores()) commit.set_restores(order.restores());
  *commit.mutable_keep() = order.keep();
  // What the groups have claimed is lost, so the screen decides nothing more about it.
  commit.set_attempt(order.attempt());
  commit.set_trim(order.trim());
  return commit;
}

// The record of the run at this version, which the order made.
v1::RunRecord RecordAt(const std::string& run, uint32_t version, const v1::OpenRun& open,
                       const v1::Apply& order) {
  v1::RunRecord record;
  record.set_run(run);
  record.set_lineage(open.lineage());
  *record.mutable_spec() = open.spec();
  // Its groups start together, so that none misses the first round.
  record.set_state(v1::RUN_STATE_QUEUED);
  record.set_version(version);
  record.set_step(version == 0 ? FirstStep(open.spec()) : order.step());
  record.set_samples(order.samples());
  record.set_rounds_committed(version);
  record.set_next_evaluation(EvaluationInterval(open.spec()));
  if (order.has_division()) *record.mutable_division() = order.division();
  return record;
}

// Adds the shards and their digests. The digest of the record's version is unknown if a shard has
// the next one. It is not needed then, because no group forms before the next version is complete.
void AddShards(const ByShard& shards, RebuiltRun& rebuilt) {
  v1::RunRecord& record = rebuilt.record;
  for (const auto& [shard, entry] : shards) {
    const v1::ShardState& state = entry->second.state();
    record.add_shards(entry->first);
    const bool ahead = state.version() > record.version();
    if (rebuilt.closing.has_value()) rebuilt.closing->add_digests()->set_shard(shard);
    v1::ShardDigest& digest = ahead ? *rebuilt.closing->mutable_digests(static_cast<int>(shard))
                                    : *rebuilt.newest.add_digests();
    digest.set_shard(shard);
    digest.set_applied(true);
    digest.set_digest(state.digest());
    if (!rebuilt.closing.has_value()) {
      rebuilt.newest.set_digest(rebuilt.newest.digest() + state.digest());
    }
  }
  record.set_digest(rebuilt.newest.digest());
}

}  // namespace

void Adoption::Add(absl::string_view aggregator, const v1::RunReport& report) {
  if (awaited.erase({std::string(aggregator), report.run()}) == 0 || !report.has_open()) return;
  runs[report.run()][std::string(aggregator)] = report;
}

void Adoption::Lose(absl::string_view aggregator) {
  std::erase_if(awaited, [&](const auto& order) { return order.first == aggregator; });
}

RebuiltRun RebuildRun(const std::string& run, const RunReports& reports) {
  RebuiltRun rebuilt;
  for (const auto& [name, report] : reports) {
    rebuilt.ended = rebuilt.ended || report.closed();
    for (const auto& [group, generation] : report.open().generations()) {
      rebuilt.generation = std::max(rebuilt.generation, generation);
    }
  }
  if (reports.empty()) rebuilt.problem = "no connected aggregator stores it";
  if (rebuilt.ended) rebuilt.problem = "it has ended";
  if (!rebuilt.problem.empty()) return rebuilt;
  RunReports stored = reports;
  std::erase_if(stored, [&](const auto& entry) { return IsLeftover(entry, reports); });
  TakeBackEarlierAttempts(stored);
  ByShard shards;
  rebuilt.problem = Collect(run, stored, shards);
  if (!rebuilt.problem.empty()) return rebuilt;

  const auto version_of = [](const auto& shard) { return shard.second->second.state().version(); };
  const auto [oldest, newest] = std::minmax_element(
      shards.begin(), shards.end(),
      [&](const auto& a, const auto& b) { return version_of(a) < version_of(b); });
  const uint32_t version = version_of(*oldest);
  if (version_of(*newest) > version + 1) {
    rebuilt.problem = absl::StrCat(oldest->second->first, " has version ", version, " of shard ",
                                   oldest->first, ", but ", newest->second->first, " has version ",
                                   version_of(*newest), " of shard ", newest->first);
    return rebuilt;
  }
  for (const uint32_t made : {version, version + 1}) {
    rebuilt.problem = ContradictionIn(made, shards);
    if (!rebuilt.problem.empty()) return rebuilt;
  }
  const v1::Apply order = OrderOf(version, shards);
  rebuilt.record = RecordAt(run, version, shards.at(0)->second.open(), order);
  rebuilt.newest = CommitOf(run, version, order);
  rebuilt.newest.set_committed(true);
  if (version_of(*newest) > version) {
    const v1::Apply next = OrderOf(version + 1, shards);
    if (next.seed()) {
      rebuilt.problem =
          absl::StrCat(oldest->second->first, " does not have version ", version + 1, " of shard ",
                       oldest->first, ", and which groups made it is not known");
      return rebuilt;
    }
    rebuilt.closing = CommitOf(run, version + 1, next);
  }
  AddShards(shards, rebuilt);
  for (const auto& [name, report] : reports) {
    if (!stored.contains(name)) rebuilt.record.add_former_shards(name);
  }
  return rebuilt;
}

}  // namespace cadre
