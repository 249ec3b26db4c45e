// How snapshots find their new owners.
//
// All ranks learn which positions each rank holds and owns. From that each of them computes the
// same sources: disjoint intervals, each with the rank that sends it. A position that several ranks
// hold comes from the newest generation, because an older one may have repeated its steps on other
// ranks. The values that one rank sends to another are ordered by the receiver's owned intervals,
// so messages contain only values. Transient memory: what a rank sends and receives of one state
// tensor.
#include "member/state_vault.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"

namespace cadre {
namespace {

constexpr size_t kMaxSnapshots = 2;

// What a rank holds for a version. No positions: nothing.
struct Holding {
  int64_t version = 0;
  int64_t generation = 0;
  int64_t tensors = 0;
  std::vector<UpdateCount> positions;

  std::string ToText() const {
    const int64_t numbers[] = {version, generation, tensors};
    std::string text(reinterpret_cast<const char*>(numbers), sizeof(numbers));
    return text.append(reinterpret_cast<const char*>(positions.data()),
                       positions.size() * sizeof(UpdateCount));
  }
  static Holding FromText(const std::string& text) {
    Holding holding;
    int64_t numbers[3] = {};
    CHECK_GE(text.size(), sizeof(numbers));
    std::memcpy(numbers, text.data(), sizeof(numbers));
    holding.version = numbers[0];
    holding.generation = numbers[1];
    holding.tensors = numbers[2];
    holding.positions.resize((text.size() - sizeof(numbers)) / sizeof(UpdateCount));
    if (!holding.positions.empty()) {
      std::memcpy(holding.positions.data(), text.data() + sizeof(numbers),
                  holding.positions.size() * sizeof(UpdateCount));
    }
    return holding;
  }
  int64_t size() const {
    int64_t elements = 0;
    for (const UpdateCount& each : positions) elements += each.positions.size();
    return elements;
  }
};

// `snapshot`: null for nothing.
template <typename Snapshot>
Holding HoldingOf(const Snapshot* snapshot) {
  if (snapshot == nullptr) return {};
  return {snapshot->version, snapshot->generation, std::ssize(snapshot->tensors),
          snapshot->positions};
}

absl::StatusOr<std::vector<Holding>> Share(const Holding& mine, Communicator& group) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(mine.ToText(), group));
  std::vector<Holding> all;
  for (const std::string& text : texts) all.push_back(Holding::FromText(text));
  return all;
}

// An interval that one rank sends, from `offset` of its snapshot.
struct Source {
  Interval positions;
  int rank = 0;
  int64_t offset = 0;
  int64_t updates = 0;

  Source Part(Interval part) const {
    return {part, rank, offset + part.begin - positions.begin, updates};
  }
};

// Disjoint sources, by the beginning of their positions.
class Sources {
 public:
  // Adds the parts of the holding that no source has.
  void Add(const Holding& holding, int rank) {
    int64_t offset = 0;
    for (const UpdateCount& each : holding.positions) {
      AddMissing({each.positions, rank, offset, each.updates});
      offset += each.positions.size();
    }
  }

  // Calls `use` with the sources of the interval, in order.
  template <typename Use>
  void ForEachIn(Interval interval, const Use& use) const {
    auto it = sources_.upper_bound(interval.begin);
    if (it != sources_.begin()) --it;
    for (; it != sources_.end() && it->first < interval.end; ++it) {
      const Interval part = Intersect(it->second.positions, interval);
      if (!part.empty()) use(it->second.Part(part));
    }
  }

 private:
  void AddMissing(const Source& source) {
    std::vector<Source> missing;
    int64_t next = source.positions.begin;
    ForEachIn(source.positions, [&](const Source& present) {
      if (next < present.positions.begin) {
        missing.push_back(source.Part({next, present.positions.begin}));
      }
      next = present.positions.end;
    });
    if (next < source.positions.end) missing.push_back(source.Part({next, source.positions.end}));
    for (const Source& part : missing) sources_[part.positions.begin] = part;
  }

  std::map<int64_t, Source> sources_;
};

// The ranks whose holdings are used, the preferred ones first.
std::vector<int> Preferred(const std::vector<Holding>& held) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    if (!held[rank].positions.empty()) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return held[a].generation > held[b].generation; });
  return ranks;
}

// A buffer for each rank.
using Buffers = std::vector<std::vector<float>>;

absl::Status AllToAll(const Buffers& send, Buffers& receive, Communicator& group) {
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (const auto& buffer : send) from.push_back(std::as_bytes(std::span(buffer)));
  for (auto& buffer : receive) to.push_back(std::as_writable_bytes(std::span(buffer)));
  return group.AllToAll(from, to);
}

// Moves one state tensor to the ranks that own its positions, and overwrites `values` with what
// this rank owns; positions without a source become zero. `mine`: what this rank holds; null:
// nothing. Returns the number of elements that this rank received.
absl::StatusOr<int64_t> Move(const std::vector<float>* mine, const Sources& sources,
                             const std::vector<Holding>& owned, std::vector<Owned>& values,
                             Communicator& group) {
  const auto for_each_part_of = [&](int rank, const auto& use) {
    for (size_t i = 0; i < owned[rank].positions.size(); ++i) {
      sources.ForEachIn(owned[rank].positions[i].positions,
                        [&](const Source& part) { use(part, i); });
    }
  };
  Buffers send(group.size());
  Buffers receive(group.size());
  std::vector<size_t> sizes(group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    for_each_part_of(rank, [&](const Source& part, size_t) {
      if (rank == group.index()) sizes[part.rank] += part.positions.size();
      if (part.rank != group.index()) return;
      const auto begin = mine->begin() + part.offset;
      send[rank].insert(send[rank].end(), begin, begin + part.positions.size());
    });
  }
  for (int rank = 0; rank < group.size(); ++rank) receive[rank].resize(sizes[rank]);
  CADRE_RETURN_IF_ERROR(AllToAll(send, receive, group));

  for (const Owned& each : values) std::fill(each.values.begin(), each.values.end(), 0.0F);
  int64_t found = 0;
  std::vector<size_t> taken(group.size());
  for_each_part_of(group.index(), [&](const Source& part, size_t i) {
    const auto from = receive[part.rank].begin() + taken[part.rank];
    const int64_t at = part.positions.begin - values[i].positions.begin;
    std::copy_n(from, part.positions.size(), values[i].values.begin() + at);
    taken[part.rank] += part.positions.size();
    found += part.positions.size();
  });
  return found;
}

// The part of an address, host:port, that names the host.
std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// The smallest distance at which the most ranks have a rank of another host.
int CopyDistance(std::span<const std::string> hosts) {
  const int ranks = std::ssize(hosts);
  int best = 1;
  int most = 0;
  for (int distance = 1; distance < ranks; ++distance) {
    int elsewhere = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (hosts[rank] != hosts[(rank + distance) % ranks]) ++elsewhere;
    }
    if (elsewhere > most) {
      most = elsewhere;
      best = distance;
    }
  }
  return best;
}

}  // namespace

void StateVault::Enter(const v1::Assignment& assignment) {
  if (assignment.lineage() != lineage_ || assignment.place().group() != group_) {
    snapshots_.clear();
  }
  lineage_ = assignment.lineage();
  group_ = assignment.place().group();
  generation_ = assignment.place().generation();
  contributed_ = false;
  hosts_.clear();
  for (const std::string& peer : assignment.peers()) hosts_.push_back(HostOf(peer));
}

StateVault::Snapshot* StateVault::Find(uint32_t version) {
  const auto it = std::find_if(snapshots_.begin(), snapshots_.end(),
                               [&](const Snapshot& each) { return each.version == version; });
  return it == snapshots_.end() ? nullptr : &*it;
}

void StateVault::DropFrom(uint32_t version) {
  while (!snapshots_.empty() && snapshots_.front().version >= version) snapshots_.pop_front();
}

void StateVault::Keep(uint32_t round, const States& states) {
  DropFrom(round);
  // The memory of the oldest snapshot is used again.
  Snapshot snapshot;
  if (snapshots_.size() == kMaxSnapshots) {
    snapshot = std::move(snapshots_.back());
    snapshots_.pop_back();
  }
  snapshot.version = round;
  snapshot.generation = generation_;
  snapshot.positions = states.updates;
  snapshot.tensors.resize(states.tensors.size());
  for (size_t i = 0; i < states.tensors.size(); ++i) {
    std::vector<float>& values = snapshot.tensors[i];
    values.clear();
    auto owned = states.tensors[i].begin();
    for (const auto& [positions, updates] : states.updates) {
      while (!owned->positions.contains(positions)) {
        ++owned;
        CHECK(owned != states.tensors[i].end()) << "positions that the rank does not own";
      }
      const auto begin = owned->values.begin() + (positions.begin - owned->positions.begin);
      values.insert(values.end(), begin, begin + positions.size());
    }
  }
  snapshots_.push_front(std::move(snapshot));
  contributed_ = true;
}

void StateVault::Adopted(uint32_t version) {
  if (std::exchange(contributed_, false)) snapshots_.front().version = version;
}

absl::StatusOr<int64_t> StateVault::Restore(uint32_t version, States* states, Communicator& group) {
  DropFrom(version + 1);
  const Snapshot* mine = snapshots_.empty() ? nullptr : &snapshots_.front();
  CADRE_ASSIGN_OR_RETURN(std::vector<Holding> held, Share(HoldingOf(mine), group));
  int64_t newest = -1;
  for (const Holding& each : held) {
    if (!each.positions.empty()) newest = std::max(newest, each.version);
  }
  for (Holding& each : held) {
    if (each.version != newest) each.positions.clear();
  }
  if (mine != nullptr && mine->version != newest) mine = nullptr;
  const std::vector<int> preferred = Preferred(held);
  if (preferred.empty()) return 0;

  Holding wanted;
  for (const Owned& owned : states->tensors.at(0)) wanted.positions.push_back({owned.positions});
  CADRE_ASSIGN_OR_RETURN(const std::vector<Holding> owned, Share(wanted, group));
  Sources sources;
  for (const int rank : preferred) sources.Add(held[rank], rank);

  int64_t elements = 0;
  for (size_t tensor = 0; tensor < states->tensors.size(); ++tensor) {
    CADRE_ASSIGN_OR_RETURN(elements, Move(mine == nullptr ? nullptr : &mine->tensors[tensor],
                                          sources, owned, states->tensors[tensor], group));
  }
  states->updates.clear();
  for (const Owned& each : states->tensors.at(0)) {
    UpdateCount* last = nullptr;
    sources.ForEachIn(each.positions, [&](const Source& part) {
      if (last != nullptr && last->positions.end == part.positions.begin &&
          last->updates == part.updates) {
        last->positions.end = part.positions.end;
      } else {
        last = &states->updates.emplace_back(part.positions, part.updates);
      }
    });
  }
  Keep(version, *states);
  contributed_ = false;
  CADRE_RETURN_IF_ERROR(Replicate(group));
  uint64_t found = elements;
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span(&found, 1)));
  return found;
}

absl::Status StateVault::Replicate(Communicator& group) {
  const int ranks = group.size();
  if (ranks == 1) return absl::OkStatus();
  const int distance = CopyDistance(hosts_);
  std::vector<int> receivers(ranks);
  for (int rank = 0; rank < ranks; ++rank) receivers[rank] = (rank + distance) % ranks;
  return Give(snapshots_.empty() ? 0 : snapshots_.front().version, receivers, group);
}

absl::Status StateVault::HandOver(uint32_t version, const std::vector<bool>& leaving,
                                  Communicator& group) {
  const int ranks = group.size();
  if (std::find(leaving.begin(), leaving.end(), false) == leaving.end()) return absl::OkStatus();
  std::vector<int> receivers(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    receivers[rank] = rank;
    while (leaving[receivers[rank]]) receivers[rank] = (receivers[rank] + 1) % ranks;
  }
  DropFrom(version + 1);
  CADRE_RETURN_IF_ERROR(Give(version, receivers, group));
  // A rank that leaves may abort the transport.
  return group.Barrier();
}

absl::Status StateVault::Give(uint32_t version, std::span<const int> receivers,
                              Communicator& group) {
  const int me = group.index();
  Snapshot* mine = Find(version);
  const bool gives = receivers[me] != me && mine != nullptr;
  CADRE_ASSIGN_OR_RETURN(const std::vector<Holding> given,
                         Share(HoldingOf(gives ? mine : nullptr), group));
  int64_t tensors = 0;
  int64_t received = 0;
  uint32_t generation = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    tensors = std::max(tensors, given[rank].tensors);
    if (receivers[rank] != me || given[rank].positions.empty()) continue;
    received += given[rank].size();
    generation = std::max(generation, static_cast<uint32_t>(given[rank].generation));
  }
  if (mine == nullptr && received > 0) {
    snapshots_.push_front({.version = version, .generation = generation});
    if (snapshots_.size() > kMaxSnapshots) snapshots_.pop_back();
    mine = &snapshots_.front();
  }
  if (mine != nullptr) mine->tensors.resize(tensors);
  for (int64_t tensor = 0; tensor < tensors; ++tensor) {
    std::vector<std::span<const std::byte>> send(group.size());
    std::vector<std::span<std::byte>> receive(group.size());
    if (mine != nullptr) {
      std::vector<float>& values = mine->tensors[tensor];
      size_t at = values.size();
      values.resize(at + received);
      if (gives) send[receivers[me]] = std::as_bytes(std::span(values).first(at));
      for (int rank = 0; rank < group.size(); ++rank) {
        if (rank == me || receivers[rank] != me) continue;
        receive[rank] = std::as_writable_bytes(std::span(values).subspan(at, given[rank].size()));
        at += given[rank].size();
      }
    }
    CADRE_RETURN_IF_ERROR(group.AllToAll(send, receive));
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == me || receivers[rank] != me || mine == nullptr) continue;
    mine->positions.insert(mine->positions.end(), given[rank].positions.begin(),
                           given[rank].positions.end());
  }
  return absl::OkStatus();
}

}  // namespace cadre
