#include "server/ledger_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/validate.h"
#include "server/mean.h"

namespace cadre {
namespace {

// Whether the order has the run's coding in both directions.
bool HasCoding(const RunTerms& terms, const v1::Apply& apply) {
  const auto same = [](const std::optional<v1::Coding>& coding, bool has, const v1::Coding& other) {
    return coding.has_value() == has &&
           (!has || coding->SerializeAsString() == other.SerializeAsString());
  };
  return same(terms.up, apply.has_up(), apply.up()) &&
         same(terms.down, apply.has_down(), apply.down());
}

// Whether the order names the group and generation of the contribution.
bool Names(const v1::Apply& apply, const v1::ContributionHeader& header) {
  return std::any_of(apply.participants().begin(), apply.participants().end(),
                     [&](const v1::Participant& participant) {
                       return participant.group() == header.group() &&
                              participant.generation() == header.generation();
                     });
}

}  // namespace

Refused BeingRestored(const std::string& run) {
  return {v1::REFUSAL_UNSPECIFIED, absl::StrCat("the shard of ", run, " is being restored")};
}

bool RequiresBefore(const v1::Apply& order) {
  const bool clips = std::any_of(order.participants().begin(), order.participants().end(),
                                 [](const v1::Participant& each) { return each.scale() > 0; });
  return order.has_restores() || order.has_outer() || order.has_down() || clips ||
         ((order.has_up() || order.fragment() > 0) && !order.seed());
}

std::optional<uint32_t> LedgerRun::newest() const { return current ? current->version : hollow; }

const StoredVersion* LedgerRun::Find(uint32_t version) const {
  if (current && current->version == version) return &*current;
  const auto found = older.find(version);
  return found == older.end() ? nullptr : &found->second;
}

bool LedgerRun::Keeps(uint32_t version) const {
  const auto& named = current->order.keep();
  return version + 1 >= current->version ||
         std::find(named.begin(), named.end(), version) != named.end();
}

bool LedgerRun::Remakes(const v1::Apply& apply) const {
  return current && !published && !closed && apply.round() == current->version &&
         apply.attempt() > current->order.attempt();
}

// A shard that was restored from contributions does not have the values of the version before.
void LedgerRun::Retract() {
  const uint32_t before = current->version - 1;
  current.reset();
  if (older.contains(before)) {
    current = older.extract(before).mapped();
  } else {
    hollow = before;
  }
}

std::vector<ContributionKey> LedgerRun::DropUntil(uint32_t version) {
  return contributions.DropIf(
      [version](const ContributionKey& key, const Contribution&) { return key.round <= version; });
}

std::optional<Refused> LedgerRun::CheckIdentity(const v1::ContributionHeader& header) const {
  if (header.lineage() != terms.lineage) {
    return Refused{v1::REFUSAL_WRONG_LINEAGE,
                   absl::StrCat("run ", terms.run, " has lineage ", terms.lineage,
                                ", the contribution has ", header.lineage())};
  }
  if (header.group() >= kMaxGroups || header.rank() >= terms.ranks) {
    return Malformed(absl::StrCat("group ", header.group(), ", rank ", header.rank(),
                                  ": runs have groups 0 to ", kMaxGroups - 1,
                                  ", this one ranks 0 to ", terms.ranks - 1));
  }
  // A seed is a version, not a difference.
  const v1::Codec codec = header.seed() || !terms.up ? v1::CODEC_FP32 : terms.up->codec();
  if (header.codec() != codec) {
    return Malformed(absl::StrCat("the contribution has codec ", static_cast<int>(header.codec()),
                                  ", the run has codec ", static_cast<int>(codec)));
  }
  return std::nullopt;
}

std::optional<Refused> LedgerRun::CheckRound(const v1::ContributionHeader& header) const {
  if (auto refused = CheckGeneration(header.group(), header.generation())) return refused;
  if (closed) {
    return Refused{v1::REFUSAL_CLOSED_ROUND, absl::StrCat("run ", terms.run, " has ended")};
  }
  if (leaving) {
    return Refused{v1::REFUSAL_UNSPECIFIED,
                   absl::StrCat("the shard of ", terms.run, " has left this aggregator")};
  }
  const uint32_t version = newest().value_or(0);
  // The shard is behind the run: its newest version is lost. The coordinator will have it restored.
  const bool ahead = header.round() > version + 1 && header.base_version() + 1 == header.round();
  if (ahead) return BeingRestored(terms.run);
  // A seed may arrive before the order that names it: it is the version itself, and other orders do
  // not use it.
  const bool left_out =
      header.round() == closing.round() && !header.seed() && !Names(closing, header);
  if (header.round() <= version || left_out) {
    return Refused{v1::REFUSAL_CLOSED_ROUND,
                   absl::StrCat("round ", header.round(), " is closed: ",
                                left_out ? "its participants are decided"
                                         : absl::StrCat("version ", version, " exists"))};
  }
  if (header.round() != version + 1 || header.base_version() != version) {
    return Refused{
        v1::REFUSAL_WRONG_BASE,
        absl::StrCat("round ", version + 1, " accepts contributions computed from version ",
                     version, ", not round ", header.round(), " from version ",
                     header.base_version())};
  }
  return std::nullopt;
}

std::vector<ContributionKey> LedgerRun::Fence(uint32_t group, const GroupGeneration& generation) {
  GroupGeneration& known = terms.generations[group];
  const bool formed = generation.number == known.number && !known.key;
  if (generation.number > known.number || formed) known = generation;
  return contributions.DropIf([&](const ContributionKey& key, const Contribution& contribution) {
    return key.group == group && key.generation < known.number && !contribution.durable;
  });
}

std::optional<Refused> LedgerRun::CheckGeneration(uint32_t group, uint32_t generation) const {
  const auto found = terms.generations.find(group);
  const GroupGeneration known =
      found == terms.generations.end() ? GroupGeneration() : found->second;
  if (generation < known.number) {
    return Refused{v1::REFUSAL_STALE_GENERATION,
                   absl::StrCat("generation ", generation, " of group ", group,
                                " has ended; the lowest accepted one is ", known.number)};
  }
  if (generation == known.number && known.key) return std::nullopt;
  return Refused{v1::REFUSAL_UNSPECIFIED,
                 absl::StrCat("generation ", generation, " of group ", group, " of ", terms.run,
                              " is not known here yet")};
}

std::optional<Refused> LedgerRun::CheckOrder(const v1::Apply& apply) const {
  const uint32_t version = *newest();
  if (closed || apply.round() <= version) {
    return Refused{v1::REFUSAL_CLOSED_ROUND,
                   absl::StrCat("round ", apply.round(), ": version ", version, " exists",
                                closed ? " and the run has ended" : "")};
  }
  if (apply.round() != version + 1) {
    return Refused{v1::REFUSAL_WRONG_BASE,
                   absl::StrCat("round ", apply.round(), " cannot follow version ", version)};
  }
  if (apply.has_restores()) return CheckRestores(apply);
  if (!apply.seed() && !HasCoding(terms, apply)) {
    return Malformed(absl::StrCat("round ", apply.round(),
                                  " is ordered with another coding than that of the run"));
  }
  if (apply.fragment() > 0 && (terms.fragments == 1 || apply.fragment() > terms.fragments)) {
    return Malformed(absl::StrCat("round ", apply.round(), " is ordered with fragment ",
                                  apply.fragment(), "; the run has ", terms.fragments));
  }
  return std::nullopt;
}

std::optional<Refused> LedgerRun::CheckRestores(const v1::Apply& apply) const {
  const std::string what =
      absl::StrCat("round ", apply.round(), ", a copy of version ", apply.restores(), ",");
  if (!apply.participants().empty() || apply.seed() || apply.fragment() > 0) {
    return Malformed(absl::StrCat(what, " has participants, a seed or a fragment"));
  }
  if (Find(apply.restores()) != nullptr) return std::nullopt;
  return Refused{v1::REFUSAL_WRONG_BASE,
                 absl::StrCat(what, " cannot be made: that version is not stored here")};
}

std::optional<ApplyDecision> LedgerRun::AddSources(ApplyPlan& plan) const {
  const v1::Apply& apply = plan.order;
  std::vector<uint64_t> samples;
  for (const v1::Participant& participant : apply.participants()) {
    samples.push_back(participant.samples());
  }
  const std::vector<float> weights = MeanWeights(samples);
  Incomplete missing;
  for (int i = 0; i < apply.participants_size(); ++i) {
    auto source = contributions.Cover(terms, span, apply, apply.participants(i));
    if (auto* refused = std::get_if<Refused>(&source)) return std::move(*refused);
    if (const auto* gap = std::get_if<Incomplete>(&source)) {
      missing.groups.push_back(gap->groups.front());
      absl::StrAppend(&missing.reason, missing.reason.empty() ? "" : "; ", gap->reason);
      continue;
    }
    plan.groups.push_back(std::get<GroupSource>(std::move(source)));
    plan.groups.back().weight = weights[i];
    if (const float scale = apply.participants(i).scale(); scale > 0) {
      plan.groups.back().scale = scale;
    }
  }
  if (missing.groups.empty()) return std::nullopt;
  return missing;
}

}  // namespace cadre
