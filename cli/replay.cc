// `cadre replay`: computes the versions of a run again from the archives of its aggregators.
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/table.h"
#include "cli/work_folder.h"
#include "server/replay.h"

namespace cadre {
namespace {

// The shards must be all shards of one run, at one version. Otherwise the sum of their digests is
// not that of a model.
absl::Status CheckTogether(const std::vector<std::string>& folders,
                           const std::vector<ReplayedShard>& shards) {
  const ReplayedShard& first = shards.front();
  std::set<uint32_t> numbers;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ReplayedShard& shard = shards[i];
    if (shard.lineage != first.lineage) {
      return absl::FailedPreconditionError(
          absl::StrCat(folders[i], " belongs to another run than ", folders.front()));
    }
    if (!numbers.insert(shard.shard).second) {
      return absl::FailedPreconditionError(
          absl::StrCat(folders[i], " has shard ", shard.shard, ", as a folder before it"));
    }
    if (shard.version != first.version) {
      return absl::FailedPreconditionError(
          absl::StrCat(folders[i], " ends at version ", shard.version, ", ", folders.front(),
                       " at version ", first.version, ": a round is under way"));
    }
  }
  if (numbers.size() == first.shards) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the run has ", first.shards, " shards: the folders of all are required"));
}

}  // namespace

absl::StatusOr<int> ReplayRun(const Invocation& in) {
  const std::vector<std::string>& folders = in.line.arguments();
  Progress progress(in.console.err, {.terminal = in.console.err_terminal,
                                     .color = in.console.color,
                                     .quiet = in.global.quiet,
                                     .width = in.console.width});
  std::vector<ReplayedShard> shards;
  for (const std::string& folder : folders) {
    CADRE_ASSIGN_OR_RETURN(const WorkFolder scratch, WorkFolder::Make(""));
    const auto draw = [&](uint32_t version, uint32_t versions) {
      if (!in.console.err_terminal) return;
      progress.Draw((shards.size() + static_cast<double>(version) / versions) / folders.size(),
                    absl::StrFormat("shard %d of %d  version %d/%d", shards.size() + 1,
                                    folders.size(), version, versions));
    };
    absl::StatusOr<ReplayedShard> shard = ReplayShard(folder, scratch.path(), draw);
    progress.Finish();
    if (!shard.ok()) return Annotate(shard.status(), folder);
    shards.push_back(*std::move(shard));
  }
  CADRE_RETURN_IF_ERROR(CheckTogether(folders, shards));

  const ReplayedShard& first = shards.front();
  uint64_t digest = 0;
  Json json{{"run", first.run}, {"version", first.version}, {"step", first.step}};
  Table table({"SHARD", "VERSIONS", "DIGEST", "FOLDER"});
  for (size_t i = 0; i < shards.size(); ++i) {
    const ReplayedShard& shard = shards[i];
    digest += shard.digest;
    json["shards"].push_back(
        {{"shard", shard.shard}, {"digest", DigestHex(shard.digest)}, {"folder", folders[i]}});
    table.AddRow({absl::StrCat(shard.shard), absl::StrCat(shard.version), DigestHex(shard.digest),
                  folders[i]});
  }
  json["digest"] = DigestHex(digest);
  Print(json,
        absl::StrCat(table.Text(), "\nAll versions of ", first.run,
                     " follow from its contributions. Version ", first.version, " (step ",
                     first.step, ") has the digest ", DigestHex(digest), ".\n"),
        in.global, in.console);
  return kExitOk;
}

}  // namespace cadre
