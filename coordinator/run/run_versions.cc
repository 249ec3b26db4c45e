// Besides the newest two, the shards keep the versions of Averaging.keep_versions and those that
// groups still load. The commit of a round names them (CommitRecord.keep), so an order that is
// repeated, also after a restart, names the same ones. RunRecord.kept has the versions that all
// shards store; the records of their commits remain with them.
//
// A rollback to version v is a round like any other, except that it has no participants: its
// version, which gets the next number, is a copy of v with the states of v. Numbers of versions
// therefore only grow, and every rule about rounds holds for a rollback as well:
//   - The commit record is durable before the first Apply, which is idempotent. A crash in between
//     changes nothing.
//   - What the groups have trained since v is based on versions that are not the newest, so no
//     shard accepts it, and a group that missed the rollback adopts the copy like any version.
//   - The digest of a version does not depend on its number, so that of the copy is known before.
// The generations of all groups end when the rollback is carried out. RunRecord.branch tells the
// next ones that what their ranks have kept of optimizer states belongs to a branch that the run
// has left: a snapshot for "version v + 1" of before is not one of the new version v + 1.
#include "coordinator/run/run_versions.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "coordinator/store/keys.h"
#include "model/data_position.h"
#include "model/kept_versions.h"
#include "proto/enum_text.h"

namespace cadre {

std::vector<uint32_t> RunVersions::Kept() const {
  std::vector<uint32_t> versions;
  for (const uint32_t version : record_.kept()) {
    const bool remains = !run_.commits().closing() || Keeps(*run_.commits().closing(), version);
    if (remains && run_.commits().Find(version) != nullptr) versions.push_back(version);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

absl::Status RunVersions::CheckKept(uint32_t version) const {
  const std::vector<uint32_t> kept = Kept();
  if (absl::c_linear_search(kept, version)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "version ", version, " of run ", run_.id(), " is not kept; ",
      kept.empty() ? "no version is"
                   : absl::StrCat("those that are kept: ", absl::StrJoin(kept, ", "))));
}

void RunVersions::OnOpened(const v1::RunOpened& opened) {
  const std::vector<uint32_t> kept(record_.kept().begin(), record_.kept().end());
  for (const uint32_t version : kept) {
    // The run goes on only when the shard has the newest version again.
    if (version == record_.version() && opened.hollow()) continue;
    std::optional<uint64_t> stored;
    if (version == opened.version() && !opened.hollow()) stored = opened.digest();
    for (const v1::KeptVersion& other : opened.kept()) {
      if (other.version() == version) stored = other.digest();
    }
    const v1::CommitRecord* const commit = run_.commits().Find(version);
    if (commit == nullptr || !stored.has_value() || stored != DigestOf(*commit, opened.shard())) {
      Lose(version);
    }
  }
}

void RunVersions::Lose(uint32_t version) {
  auto& kept = *record_.mutable_kept();
  const auto found = absl::c_find(kept, version);
  if (found == kept.end()) return;
  kept.erase(found);
  EraseCommit(version);
  stored_.Save();
}

void RunVersions::LoseOthers(uint32_t version) {
  const std::vector<uint32_t> kept(record_.kept().begin(), record_.kept().end());
  for (const uint32_t other : kept) {
    if (other != version) Lose(other);
  }
}

// The newest ones remain in any case.
void RunVersions::EraseCommit(uint32_t version) {
  const uint32_t keep = std::max(options_.keep_commits, 2U);
  if (version + keep > record_.version()) return;
  cluster_.out().EraseOne(CommitKey(run_.id(), version));
}

void RunVersions::OnCommit(const v1::CommitRecord& newest) {
  const std::vector<uint32_t> before(record_.kept().begin(), record_.kept().end());
  record_.clear_kept();
  record_.add_kept(newest.round());
  for (const uint32_t version : before) {
    if (Keeps(newest, version)) {
      record_.add_kept(version);
    } else {
      EraseCommit(version);
    }
  }
  const uint32_t keep = std::max(options_.keep_commits, 2U);
  if (newest.round() < keep || absl::c_linear_search(record_.kept(), newest.round() - keep)) return;
  EraseCommit(newest.round() - keep);
}

void RunVersions::Reset() {
  record_.clear_kept();
  record_.add_kept(record_.version());
}

bool RunVersions::SetLoading(uint32_t group, uint32_t version) {
  const auto [load, is_new] = record_.mutable_loading()->insert({group, version});
  return is_new || std::exchange(load->second, version) != version;
}

void RunVersions::OnLoaded(uint32_t group, uint32_t version) {
  auto& loading = *record_.mutable_loading();
  const auto load = loading.find(group);
  if (load != loading.end() && version >= load->second) loading.erase(load);
}

// A group that has been away for too long, or has stopped, is not awaited, and keeps no version.
std::map<uint32_t, uint32_t> RunVersions::Loads(const Round::Away& away) const {
  std::map<uint32_t, uint32_t> loads(record_.loading().begin(), record_.loading().end());
  std::erase_if(loads, [&](const auto& load) {
    if (!run_.slots().started().contains(load.first)) return true;
    const auto found = away.find(load.first);
    const auto& watch = run_.slots()[load.first].watch;
    return (found != away.end() && found->second <= cluster_.now()) ||
           (watch.has_value() && watch->pause() > kMaxLoadPause);
  });
  return loads;
}

void RunVersions::SetKeep(const Round::Away& away, v1::CommitRecord& commit) const {
  std::set<uint32_t> loaded;
  for (const auto& [group, version] : Loads(away)) loaded.insert(version);
  const std::vector<uint32_t> keep =
      run_.commits().KeptBy(commit, KeptVersionsOf(run_.spec().averaging()), loaded);
  commit.mutable_keep()->Assign(keep.begin(), keep.end());
  // A rollback that waits keeps its version, beside those of the policy and of groups.
  const bool pinned = record_.has_rollback() && !Keeps(commit, record_.rollback());
  if (pinned && CheckKept(record_.rollback()).ok()) commit.add_keep(record_.rollback());
}

std::map<uint32_t, uint32_t> RunVersions::LoadsThatEnd(const Round::Away& away) const {
  if (record_.loading().empty()) return {};
  v1::CommitRecord next;
  next.set_round(record_.version() + 1);
  SetKeep(away, next);
  std::map<uint32_t, uint32_t> loads = Loads(away);
  std::erase_if(loads, [&](const auto& load) { return Keeps(next, load.second); });
  return loads;
}

absl::Time RunVersions::AwaitsLoadsUntil(const Round::Away& away) const {
  if (LoadsThatEnd(away).empty()) return absl::InfinitePast();
  return run_.round().ClosesAt(run_.slots().started().size(), away) + run_.round().Grace();
}

// ---- Rollbacks

absl::Status RunVersions::CheckLeftOut(const std::vector<uint32_t>& groups) const {
  const std::set<uint32_t> left_out(groups.begin(), groups.end());
  // A change of the number of groups takes effect with the copy.
  const size_t groups_after = record_.scaling_to() > 0 ? record_.scaling_to() : run_.slots().size();
  for (const uint32_t group : left_out) {
    if (group < groups_after) continue;
    return absl::InvalidArgumentError(absl::StrCat("leave_out: run ", run_.id(), " has no group ",
                                                   group, ", but groups 0 to ", groups_after - 1));
  }
  const v1::Averaging& averaging = run_.spec().averaging();
  const size_t left = groups_after - left_out.size();
  for (const auto& [name, min] : {std::pair("quorum", averaging.quorum()),
                                  std::pair("min_groups", std::max(1U, averaging.min_groups()))}) {
    if (left_out.empty() || left >= min) continue;
    return absl::InvalidArgumentError(absl::StrCat("leave_out: ", left,
                                                   " groups would remain, less "
                                                   "than averaging.",
                                                   name, " of run ", run_.id(), " (", min,
                                                   "): no round would close"));
  }
  return absl::OkStatus();
}

absl::Status RunVersions::CheckRollback(uint32_t version,
                                        const std::vector<uint32_t>& leave_out) const {
  if (!run_.averages()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", run_.id(), " never averages (averaging.every_steps: 0), so no version is kept"));
  }
  if (!run_.live()) {
    return absl::FailedPreconditionError(absl::StrCat("run ", run_.id(), " has ended (",
                                                      EnumText(record_.state()),
                                                      "), so it cannot be rolled back"));
  }
  if (const absl::Status kept = CheckKept(version); !kept.ok()) return kept;
  return CheckLeftOut(leave_out);
}

void RunVersions::OrderRollback(uint32_t version, const std::vector<uint32_t>& leave_out) {
  record_.set_rollback(version);
  const std::set<uint32_t> left_out(leave_out.begin(), leave_out.end());
  record_.mutable_left_out()->Assign(left_out.begin(), left_out.end());
}

v1::CommitRecord RunVersions::TakeRollback() {
  const v1::CommitRecord& to = *run_.commits().Find(record_.rollback());
  v1::CommitRecord commit;
  commit.set_run(run_.id());
  commit.set_round(record_.version() + 1);
  commit.set_restores(to.round());
  commit.set_step(to.round() == 0 ? FirstStep(run_.spec()) : to.step());
  commit.set_run_samples(to.run_samples());
  if (to.has_loss()) commit.set_loss(to.loss());
  commit.set_opened_ms(record_.round_opened_ms());
  commit.set_closed_ms(absl::ToUnixMillis(cluster_.now()));
  const v1::SampleDivision division =
      to.has_division() ? to.division() : InitialDivision(run_.spec());
  const uint32_t groups =
      record_.scaling_to() > 0 ? record_.scaling_to() : DivisionOf(record_).groups();
  *commit.mutable_division() =
      groups == division.groups()
          ? division
          : DivideFrom(division, commit.step(), groups, BatchOf(run_.spec()));
  record_.clear_rollback();
  record_.set_branch(commit.round());
  SetKeep({}, commit);
  stored_.Save();
  return commit;
}

}  // namespace cadre
