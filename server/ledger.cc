// The ledger is separate from files and streams because every rule in its header is a decision on a
// small in-memory state, and each must hold for every interleaving of streams, orders, crashes and
// restarts. As a pure state machine it is tested exhaustively without a disk, and the simulator
// runs this code, not a model of it.
//
// The protocol with the disk is the reverse of write-ahead logging: the ledger grants, the caller
// writes and syncs, then reports, and only then does the ledger's state change
// (ContributionDurable, VersionDurable). A crash between the write and the report therefore leaves
// more on disk than was acknowledged, never less; Restore accepts complete files and returns the
// others for deletion.
//
// `attempt` orders concurrent streams for one contribution: after a reconnect the old stream may
// still deliver chunks. Stage gives the new stream a larger attempt and CheckChunk refuses the old
// one, so chunks are counted once and in order.
//
// At the end of a round, Apply and staging run concurrently. BeginApply first records the
// participants (closing_round, closing): from then on other contributions are refused, while
// participants may still finish. Then it requires that durable contributions cover the shard
// exactly. If one is missing, the participants stay fixed and the coordinator's next Apply is
// checked again, so a commit is only applied with the participants that it names.
//
// Cost: BeginApply is O(s log s) in the s segments of the round, all else O(log n) in the stored
// contributions.
#include "server/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/client/shard_span.h"
#include "server/mean.h"

namespace cadre {
namespace {

// Far above the maximum in a run file; ShardSpan is exact up to 2^31.
constexpr uint32_t kMaxShards = 1 << 20;

std::optional<Refused> CheckTerms(const RunTerms& terms) {
  const bool sorted = std::is_sorted(terms.tensor_begin.begin(), terms.tensor_begin.end());
  if (terms.run.empty() || terms.lineage.empty()) return Malformed("run or lineage is missing");
  if (terms.shard >= terms.shards) {
    return Malformed(absl::StrCat("shard ", terms.shard, " of ", terms.shards));
  }
  if (terms.shards > kMaxShards) {
    return Malformed(absl::StrCat(terms.shards, " shards exceed the limit of ", kMaxShards));
  }
  if (terms.tensor_begin.size() < 2 || terms.tensor_begin.front() != 0 || !sorted) {
    return Malformed("the model has no parameters");
  }
  return std::nullopt;
}

bool SameTerms(const RunTerms& a, const RunTerms& b) {
  return a.lineage == b.lineage && a.shard == b.shard && a.shards == b.shards &&
         a.groups == b.groups && a.ranks == b.ranks && a.tensor_begin == b.tensor_begin;
}

// Participants must be in group order, each group once, because the order of a sum determines its
// bits. Their weights must not all be 0.
std::optional<Refused> CheckParticipants(const v1::Apply& apply) {
  bool any_samples = false;
  for (int i = 0; i < apply.participants_size(); ++i) {
    any_samples |= apply.participants(i).samples() > 0;
    if (i > 0 && apply.participants(i).group() <= apply.participants(i - 1).group()) {
      return Malformed(absl::StrCat("the participants of round ", apply.round(),
                                    " are not in group order, each once"));
    }
  }
  if (any_samples) return std::nullopt;
  return Malformed(absl::StrCat("round ", apply.round(), " has no samples"));
}

template <typename Contributions>
std::vector<ContributionKey> KeysOf(const Contributions& contributions) {
  std::vector<ContributionKey> keys;
  for (const auto& [key, contribution] : contributions) keys.push_back(key);
  return keys;
}

}  // namespace

Ledger::Run* Ledger::Find(const std::string& run) {
  const auto found = runs_.find(run);
  return found == runs_.end() ? nullptr : &found->second;
}

// --- Runs

Decision<Opened> Ledger::OpenRun(const RunTerms& terms) {
  if (auto refused = CheckTerms(terms)) return *refused;
  Opened opened;
  opened.span = ShardSpan(terms.tensor_begin.back(), terms.shard, terms.shards);
  if (const auto found = runs_.find(terms.run); found != runs_.end()) {
    Run& known = found->second;
    // Until the first round, the shards of a run may be reassigned.
    const bool untouched = !known.current || known.current->number == 0;
    if (known.terms.lineage != terms.lineage) {
      opened.replaces_lineage = known.terms.lineage;
      runs_.erase(found);
    } else if (!SameTerms(known.terms, terms) && untouched) {
      opened.dropped = KeysOf(known.contributions);
      runs_.erase(found);
    } else if (!SameTerms(known.terms, terms)) {
      return Malformed(absl::StrCat("run ", terms.run,
                                    " is open with another model, cluster or shard (",
                                    known.terms.shard, " of ", known.terms.shards, ")"));
    }
  }
  Run& run = runs_[terms.run];
  if (run.terms.run.empty()) {
    run.terms = terms;
    run.span = opened.span;
  }
  for (const auto& [group, generation] : terms.generations) {
    const std::vector<ContributionKey> dropped = Fence(run, group, generation);
    opened.dropped.insert(opened.dropped.end(), dropped.begin(), dropped.end());
  }
  run.closed = false;
  opened.make_version_zero = !run.current.has_value();
  return opened;
}

std::vector<ContributionKey> Ledger::CloseRun(const std::string& name) {
  const auto found = runs_.find(name);
  if (found == runs_.end()) return {};
  Run& run = found->second;
  run.closed = true;
  run.applying = false;
  const std::vector<ContributionKey> dropped = KeysOf(run.contributions);
  run.contributions.clear();
  return dropped;
}

std::vector<ContributionKey> Ledger::Restore(const RunTerms& terms, bool closed,
                                             const std::vector<FoundVersion>& versions,
                                             const std::vector<FoundContribution>& contributions) {
  Run& run = runs_[terms.run];
  run.terms = terms;
  run.span = ShardSpan(terms.tensor_begin.back(), terms.shard, terms.shards);
  run.closed = closed;
  for (const FoundVersion& version : versions) {
    const Version found{version.version, version.stats};
    if (!run.current || found.number > run.current->number) {
      run.previous = std::exchange(run.current, found);
    } else if (!run.previous || found.number > run.previous->number) {
      run.previous = found;
    }
  }
  std::vector<ContributionKey> useless;
  for (const FoundContribution& found : contributions) {
    const ContributionKey key = ContributionKey::Of(found.header);
    Decision<Contribution> laid = MapRanges(run, found.header);
    const uint32_t next = run.current ? run.current->number + 1 : 1;
    if (closed || key.round != next || std::holds_alternative<Refused>(laid)) {
      useless.push_back(key);
      continue;
    }
    Contribution contribution = std::get<Contribution>(std::move(laid));
    contribution.stored_chunks = std::min(found.whole_chunks, contribution.chunks);
    contribution.durable = contribution.stored_chunks == contribution.chunks;
    run.contributions.emplace(key, std::move(contribution));
  }
  return useless;
}

std::vector<v1::ShardState> Ledger::States() const {
  std::vector<v1::ShardState> states;
  for (const auto& [name, run] : runs_) {
    if (!run.current) continue;
    v1::ShardState state;
    state.set_run(name);
    state.set_lineage(run.terms.lineage);
    state.set_shard(run.terms.shard);
    state.set_version(run.current->number);
    state.set_digest(run.current->stats.digest);
    states.push_back(std::move(state));
  }
  return states;
}

// --- Rounds

// Returns the participant's segments in order of positions, or the reason why they do not cover the
// shard.
std::variant<GroupSource, std::string> Ledger::CoverShard(const Run& run, uint32_t round,
                                                          const v1::Participant& participant) {
  GroupSource source;
  source.group = participant.group();
  const ContributionKey first{run.terms.run, round, participant.group(), participant.generation(),
                              0};
  std::string partial;
  for (auto it = run.contributions.lower_bound(first); it != run.contributions.end(); ++it) {
    const auto& [key, contribution] = *it;
    if (std::tie(key.round, key.group, key.generation) !=
        std::tie(first.round, first.group, first.generation)) {
      break;
    }
    if (!contribution.durable) {
      absl::StrAppend(&partial, "; rank ", key.rank, " has staged ", contribution.stored_chunks,
                      " of ", contribution.chunks, " chunks");
      continue;
    }
    if (key.rank >= participant.ranks()) {
      return absl::StrCat(key.ToString(), " is staged, but the number of ranks of the group is ",
                          participant.ranks());
    }
    int64_t offset = 0;
    for (const Interval& span : contribution.spans) {
      source.segments.push_back({key, span, offset});
      offset += span.size();
    }
  }
  std::sort(source.segments.begin(), source.segments.end(),
            [](const auto& a, const auto& b) { return a.span.begin < b.span.begin; });
  int64_t at = run.span.begin;
  for (const SourceSegment& segment : source.segments) {
    if (segment.span.begin != at) break;
    at = segment.span.end;
  }
  const bool whole = source.segments.empty()
                         ? run.span.size() == 0
                         : at == source.segments.back().span.end && at == run.span.end;
  if (whole) return source;
  return absl::StrCat("group ", participant.group(), ", generation ", participant.generation(),
                      " does not cover the shard's positions [", run.span.begin, ", ", run.span.end,
                      "): gap or overlap at ", at, partial);
}

ApplyDecision Ledger::BeginApply(const v1::Apply& apply) {
  Run* const found = Find(apply.run());
  if (found == nullptr || !found->current) return UnknownRun(apply.run());
  Run& run = *found;
  if (apply.shard() != run.terms.shard) {
    return Malformed(absl::StrCat("shard ", apply.shard(), " of ", apply.run(),
                                  " is not open here; shard ", run.terms.shard, " is"));
  }
  for (const auto& version : {run.current, run.previous}) {
    if (version && version->number == apply.round()) return AlreadyApplied{version->stats};
  }
  if (run.closed || apply.round() <= run.current->number) {
    return Refused{v1::REFUSAL_CLOSED_ROUND,
                   absl::StrCat("round ", apply.round(), ": version ", run.current->number,
                                " exists", run.closed ? " and the run has ended" : "")};
  }
  if (apply.round() != run.current->number + 1) {
    return Refused{
        v1::REFUSAL_WRONG_BASE,
        absl::StrCat("round ", apply.round(), " cannot follow version ", run.current->number)};
  }
  if (run.applying) return ApplyUnderWay{};

  if (auto refused = CheckParticipants(apply)) return *refused;
  run.closing_round = apply.round();
  run.closing.clear();
  std::vector<uint64_t> samples;
  for (const v1::Participant& participant : apply.participants()) {
    run.closing.insert({participant.group(), participant.generation()});
    samples.push_back(participant.samples());
  }
  const std::vector<float> weights = MeanWeights(samples);
  ApplyPlan plan{run.terms.run, apply.round(), run.span, {}, run.terms.statistics};
  for (int i = 0; i < apply.participants_size(); ++i) {
    std::variant<GroupSource, std::string> source =
        CoverShard(run, apply.round(), apply.participants(i));
    if (auto* missing = std::get_if<std::string>(&source)) return Malformed(std::move(*missing));
    plan.groups.push_back(std::get<GroupSource>(std::move(source)));
    plan.groups.back().weight = weights[i];
  }
  run.applying = true;
  return plan;
}

void Ledger::ApplyFailed(const std::string& name, uint32_t round) {
  Run* const run = Find(name);
  if (run != nullptr && run->closing_round == round) run->applying = false;
}

std::vector<ContributionKey> Ledger::VersionDurable(const std::string& name, uint32_t version,
                                                    const VersionStats& stats) {
  Run* const found = Find(name);
  if (found == nullptr) return {};
  Run& run = *found;
  const bool first = !run.current && version == 0;
  if (!first && !(run.applying && version == run.closing_round)) return {};
  run.previous = std::exchange(run.current, Version{version, stats});
  run.applying = false;
  return DropIf(run, [version](const ContributionKey& key, const Contribution&) {
    return key.round <= version;
  });
}

PullDecision Ledger::Pull(const v1::PullRequest& request) const {
  const Run* run = Find(request.run());
  if (run == nullptr || !run->current) return UnknownRun(request.run());
  if (request.lineage() != run->terms.lineage) {
    return Refused{v1::REFUSAL_WRONG_LINEAGE,
                   absl::StrCat("run ", request.run(), " has lineage ", run->terms.lineage,
                                ", not ", request.lineage())};
  }
  Decision<std::vector<Interval>> spans =
      Flatten(run->terms.tensor_begin, run->span, request.ranges());
  if (auto* refused = std::get_if<Refused>(&spans)) return *refused;
  for (const auto& version : {run->current, run->previous}) {
    if (!version || version->number != request.version()) continue;
    PullGrant grant{request.run(), request.version(), {}, 0};
    grant.spans = std::get<std::vector<Interval>>(std::move(spans));
    grant.elements = Elements(grant.spans);
    return grant;
  }
  return NoSuchVersion{request.version(), run->current->number};
}

}  // namespace cadre
