#include "server/replay.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/file_system.h"
#include "base/status.h"
#include "server/archive.h"
#include "server/block_file.h"
#include "server/ledger.h"
#include "server/run_terms.h"
#include "server/shard_store.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// What the ledger reads from a contribution. The blocks are checked when they are read.
absl::StatusOr<FoundContribution> ReadContribution(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(PosixFileSystem(), path, Access::kRead));
  FoundContribution found;
  if (!found.header.ParseFromString(file->head().meta)) {
    return absl::DataLossError(absl::StrCat(path, ": the header is damaged"));
  }
  found.whole_chunks = static_cast<uint32_t>(file->head().blocks());
  return found;
}

// The plan of a round, by the rules that the aggregator follows.
absl::StatusOr<ApplyPlan> PlanOf(const RunTerms& terms, const std::vector<StoredVersion>& before,
                                 const std::vector<FoundContribution>& contributions,
                                 const v1::Apply& order) {
  Ledger ledger;
  ledger.Restore(terms, /*closed=*/false, before, contributions);
  ApplyDecision decision = ledger.BeginApply(order);
  if (auto* plan = std::get_if<ApplyPlan>(&decision)) return std::move(*plan);
  const std::string version = absl::StrCat("version ", order.round());
  if (const auto* incomplete = std::get_if<Incomplete>(&decision)) {
    return absl::FailedPreconditionError(
        absl::StrCat(version, ": the archive lacks contributions of groups ",
                     absl::StrJoin(incomplete->groups, ", "), ": ", incomplete->reason));
  }
  const auto* refused = std::get_if<Refused>(&decision);
  return absl::FailedPreconditionError(
      absl::StrCat(version, ": ", refused != nullptr ? refused->reason : "exists already"));
}

// The versions of which others are copies.
std::set<uint32_t> RestoredVersions(const std::map<uint32_t, ArchivedRound>& rounds) {
  std::set<uint32_t> restored;
  for (const auto& [version, round] : rounds) {
    if (round.order.has_restores()) restored.insert(round.order.restores());
  }
  return restored;
}

// Makes a contribution visible to the scratch store.
absl::Status Link(const std::string& path, const ContributionKey& key, const std::string& scratch) {
  const std::string link = absl::StrCat(scratch, "/", DataFolder::ContributionName(key));
  std::error_code error;
  fs::create_symlink(fs::absolute(path), link, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot create ", link, ": ", error.message()));
}

}  // namespace

absl::StatusOr<ReplayedShard> ReplayShard(
    const std::string& run_folder, const std::string& scratch,
    const std::function<void(uint32_t version, uint32_t versions)>& on_version,
    const RootedFiles& checkpoint_files) {
  FileSystem& files = PosixFileSystem();
  CADRE_ASSIGN_OR_RETURN(const ShardStore::FoundRun found, ShardStore::ReadRun(files, run_folder));
  CADRE_ASSIGN_OR_RETURN(const auto rounds, ReadArchive(files, run_folder));
  CADRE_ASSIGN_OR_RETURN(RunTerms terms, RunTermsOf(found.open));
  terms.hollow.reset();
  CADRE_ASSIGN_OR_RETURN(const auto store, ShardStore::Open(files, scratch, "replay"));
  CADRE_RETURN_IF_ERROR(store->SaveRun(found.open, /*closed=*/false));
  const std::string& run = terms.run;
  const uint32_t versions = rounds.empty() ? 0 : rounds.rbegin()->first;

  CADRE_ASSIGN_OR_RETURN(const ShardStore::InitialVersion initial,
                         MakeInitialVersion(found.open.spec(), checkpoint_files));
  const std::set<uint32_t> restored = RestoredVersions(rounds);
  std::map<uint32_t, StoredVersion> kept;
  StoredVersion newest;
  CADRE_ASSIGN_OR_RETURN(newest.stats, store->WriteInitial(terms, initial));
  for (const auto& [version, round] : rounds) {
    if (version != newest.version + 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("the archive lacks the order of version ", newest.version + 1));
    }
    std::vector<FoundContribution> contributions;
    for (const std::string& path : round.contributions) {
      CADRE_ASSIGN_OR_RETURN(FoundContribution read, ReadContribution(path));
      CADRE_RETURN_IF_ERROR(Link(path, ContributionKey::Of(read.header), scratch));
      contributions.push_back(std::move(read));
    }
    std::vector<StoredVersion> before = {newest};
    if (kept.contains(round.order.restores())) before.push_back(kept[round.order.restores()]);
    CADRE_ASSIGN_OR_RETURN(const ApplyPlan plan, PlanOf(terms, before, contributions, round.order));
    CADRE_ASSIGN_OR_RETURN(const VersionStats stats, store->WriteMean(plan));
    if (stats.digest != round.digest) {
      return absl::DataLossError(absl::StrCat("version ", version, " has the digest ",
                                              DigestHex(stats.digest), ", but the aggregator made ",
                                              DigestHex(round.digest)));
    }
    for (const FoundContribution& used : contributions) {
      store->RemoveContribution(ContributionKey::Of(used.header));
    }
    if (restored.contains(newest.version)) kept[newest.version] = newest;
    if (!restored.contains(newest.version)) store->RemoveVersion(run, newest.version);
    newest = {version, stats, plan.order};
    on_version(version, versions);
  }
  return ReplayedShard{.run = run,
                       .lineage = terms.lineage,
                       .shard = terms.shard,
                       .shards = terms.shards,
                       .version = newest.version,
                       .step = newest.order.step(),
                       .digest = newest.stats.digest};
}

}  // namespace cadre
