#include "coordinator/run.h"

#include <algorithm>

namespace cadre {
namespace {

bool Holds(const v1::CommitRecord& commit, uint32_t group, uint32_t generation) {
  return std::any_of(commit.participants().begin(), commit.participants().end(),
                     [&](const v1::Participant& in) {
                       return in.group() == group && in.generation() == generation;
                     });
}

}  // namespace

Run::Run(const v1::RunRecord& run, absl::Time now)
    : record(run), round(run.spec().averaging().quorum(), MinGrace(run.spec())) {
  for (uint32_t group = 0; group < GroupsOf(run.spec()); ++group) {
    slots.emplace_back(run.run(), group, now);
  }
  round.Open(run.version() + 1);
}

bool Run::shards_open() const {
  return !averages() || (record.shards_size() > 0 && std::ssize(opened) == record.shards_size() &&
                         last.has_value());
}

std::vector<uint32_t> Run::LiveGroups() const {
  std::vector<uint32_t> groups;
  for (const Slot& slot : slots) {
    if (slot.started()) groups.push_back(slot.group());
  }
  return groups;
}

bool Run::InLastCommit(uint32_t group) const {
  return last.has_value() && Holds(*last, group, slots[group].record().generation());
}

bool Run::InClosing(uint32_t group) const {
  return closing.has_value() && Holds(*closing, group, slots[group].record().generation());
}

std::optional<uint64_t> Run::ShardDigestOf(uint32_t shard) const {
  if (!last.has_value()) return std::nullopt;
  for (const v1::ShardDigest& digest : last->digests()) {
    if (digest.shard() == shard) return digest.digest();
  }
  return std::nullopt;
}

uint64_t SumOfDigests(const v1::CommitRecord& commit) {
  uint64_t sum = 0;
  for (const v1::ShardDigest& digest : commit.digests()) sum += digest.digest();
  return sum;
}

}  // namespace cadre
