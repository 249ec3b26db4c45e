// How snapshots find their new owners.
//
// All ranks learn which positions each rank holds and owns. From that each of them computes the
// same sources: disjoint intervals, each with the rank that sends it. A position that several ranks
// hold comes from the newest version and generation, because an older one may have repeated its
// steps on other ranks. The values that one rank sends to another are ordered by the receiver's
// owned intervals, so messages contain only values. Transient memory: what a rank sends and
// receives of one state tensor.
#include "member/state_vault.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"

namespace cadre {
namespace {

constexpr size_t kMaxSnapshots = 2;

int64_t SizeOf(const std::vector<UpdateCount>& positions) {
  int64_t elements = 0;
  for (const UpdateCount& each : positions) elements += each.positions.size();
  return elements;
}

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
  int64_t size() const { return SizeOf(positions); }
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
    for (const auto end = sources_.lower_bound(interval.end); it != end; ++it) {
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
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return std::pair(held[a].version, held[a].generation) >
           std::pair(held[b].version, held[b].generation);
  });
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

// For each rank, the rank that receives its copy. The ranks in the order of their hosts are shifted
// by the number of ranks on the largest host, so every copy is on another host, if no host has more
// than half of the ranks.
std::vector<int> CopyReceivers(std::span<const std::string> hosts, int ranks) {
  std::vector<int> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  int shift = 1;
  if (std::ssize(hosts) == ranks) {
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return hosts[a] < hosts[b]; });
    std::map<std::string, int> counts;
    for (const std::string& host : hosts) shift = std::max(shift, ++counts[host]);
    if (shift == ranks) shift = 1;
  }
  std::vector<int> receivers(ranks);
  for (int i = 0; i < ranks; ++i) receivers[order[i]] = order[(i + shift) % ranks];
  return receivers;
}

// A collective: returns the texts, by rank, of the ranks whose receiver this one is; the others are
// empty. `sizes`: those of all texts.
absl::StatusOr<std::vector<std::string>> GiveTexts(const std::string& text,
                                                   std::span<const uint64_t> sizes,
                                                   std::span<const int> receivers,
                                                   Communicator& group) {
  std::vector<std::string> texts(group.size());
  std::vector<std::span<const std::byte>> send(group.size());
  std::vector<std::span<std::byte>> receive(group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.index() || receivers[rank] != group.index()) continue;
    texts[rank].resize(sizes[rank]);
    receive[rank] = std::as_writable_bytes(std::span(texts[rank]));
  }
  const int receiver = receivers[group.index()];
  if (receiver != group.index()) send[receiver] = std::as_bytes(std::span(text));
  CADRE_RETURN_IF_ERROR(group.AllToAll(send, receive));
  return texts;
}

// The updates of the owned values that have a source.
std::vector<UpdateCount> UpdatesOf(const std::vector<Owned>& owned, const Sources& sources) {
  std::vector<UpdateCount> updates;
  for (const Owned& each : owned) {
    bool first = true;
    sources.ForEachIn(each.positions, [&](const Source& part) {
      const bool continues = !first && updates.back().positions.end == part.positions.begin &&
                             updates.back().updates == part.updates;
      if (continues) {
        updates.back().positions.end = part.positions.end;
      } else {
        updates.push_back({part.positions, part.updates});
      }
      first = false;
    });
  }
  return updates;
}

}  // namespace

void StateVault::Enter(const v1::Assignment& assignment) {
  if (assignment.lineage() != lineage_ || assignment.branch() != branch_ ||
      assignment.place().group() != group_) {
    snapshots_.clear();
  }
  lineage_ = assignment.lineage();
  branch_ = assignment.branch();
  group_ = assignment.place().group();
  generation_ = assignment.place().generation();
  receivers_.clear();
  hosts_.clear();
  for (const std::string& peer : assignment.peers()) hosts_.push_back(HostOf(peer));
}

void StateVault::DropFrom(uint32_t version) {
  while (!snapshots_.empty() && snapshots_.front().version >= version) snapshots_.pop_front();
}

void StateVault::Resize(uint32_t version, std::vector<UpdateCount> positions, size_t tensors,
                        Snapshot& snapshot) const {
  snapshot.version = version;
  snapshot.generation = generation_;
  snapshot.positions = std::move(positions);
  snapshot.tensors.resize(tensors);
  for (std::vector<float>& values : snapshot.tensors) values.resize(SizeOf(snapshot.positions));
}

void StateVault::Fill(uint32_t version, const States& states, Snapshot& snapshot) const {
  Resize(version, states.updates, states.tensors.size(), snapshot);
  for (size_t i = 0; i < states.tensors.size(); ++i) {
    auto to = snapshot.tensors[i].begin();
    auto owned = states.tensors[i].begin();
    for (const auto& [positions, updates] : states.updates) {
      while (!owned->positions.contains(positions)) {
        ++owned;
        CHECK(owned != states.tensors[i].end()) << "positions that the rank does not own";
      }
      const auto begin = owned->values.begin() + (positions.begin - owned->positions.begin);
      to = std::copy_n(begin, positions.size(), to);
    }
  }
}

void StateVault::Push(Snapshot snapshot) {
  DropFrom(snapshot.version);
  if (snapshots_.size() == kMaxSnapshots) snapshots_.pop_back();
  snapshots_.push_front(std::move(snapshot));
}

StateVault::Snapshot& StateVault::Keep(uint32_t round, std::vector<UpdateCount> positions,
                                       size_t tensors) {
  DropFrom(round);
  // The memory of the oldest snapshot is used again.
  Snapshot snapshot;
  if (snapshots_.size() == kMaxSnapshots) {
    snapshot = std::move(snapshots_.back());
    snapshots_.pop_back();
  }
  Resize(round, std::move(positions), tensors, snapshot);
  Push(std::move(snapshot));
  return snapshots_.front();
}

void StateVault::Keep(uint32_t round, const States& states) {
  Fill(round, states, Keep(round, states.updates, states.tensors.size()));
}

void StateVault::Replace(uint32_t version, const States& states) {
  Snapshot snapshot;
  if (!snapshots_.empty()) snapshot = std::move(snapshots_.front());
  snapshots_.clear();
  Fill(version, states, snapshot);
  snapshots_.push_front(std::move(snapshot));
}

void StateVault::Settle(uint32_t version, absl::FunctionRef<bool(Snapshot& snapshot)> settle) {
  DropFrom(version + 1);
  std::erase_if(snapshots_, [&](Snapshot& each) { return !settle(each); });
}

int64_t StateVault::AllocatedBytes() const {
  size_t elements = 0;
  for (const Snapshot& snapshot : snapshots_) {
    for (const std::vector<float>& values : snapshot.tensors) elements += values.capacity();
  }
  return static_cast<int64_t>(elements * sizeof(float));
}

absl::StatusOr<int64_t> StateVault::Restore(uint32_t version, States* states, Communicator& group) {
  DropFrom(version + 1);
  const Snapshot* mine = snapshots_.empty() ? nullptr : &snapshots_.front();
  const auto tensors = std::ssize(states->tensors);
  if (mine != nullptr && std::ssize(mine->tensors) != tensors) mine = nullptr;
  CADRE_ASSIGN_OR_RETURN(const std::vector<Holding> held, Share(HoldingOf(mine), group));
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
  states->updates = UpdatesOf(states->tensors.at(0), sources);
  // The snapshots that others may still need are replaced when all ranks have the new ones.
  Snapshot restored;
  Fill(version, *states, restored);
  CADRE_RETURN_IF_ERROR(CopyToPeer(restored, group));
  uint64_t found = elements;
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span(&found, 1)));
  Push(std::move(restored));
  return found;
}

absl::Status StateVault::Replicate(Communicator& group) {
  if (!snapshots_.empty()) return CopyToPeer(snapshots_.front(), group);
  Snapshot empty;
  return CopyToPeer(empty, group);
}

absl::Status StateVault::CopyToPeer(Snapshot& snapshot, Communicator& group) {
  if (group.size() == 1) return absl::OkStatus();
  if (receivers_.empty()) {
    // Those of rank 0, because a rank may know another address of a peer.
    std::string text;
    for (const int receiver : CopyReceivers(hosts_, group.size())) {
      absl::StrAppend(&text, receiver, ",");
    }
    CADRE_ASSIGN_OR_RETURN(text, BroadcastText(text, group));
    for (const absl::string_view number : absl::StrSplit(text, ',', absl::SkipEmpty())) {
      int receiver = 0;
      if (!absl::SimpleAtoi(number, &receiver)) return absl::InternalError("malformed receivers");
      receivers_.push_back(receiver);
    }
  }
  return Give(snapshot, receivers_, group);
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
  if (!snapshots_.empty()) {
    CADRE_RETURN_IF_ERROR(Give(snapshots_.front(), receivers, group));
  } else {
    Snapshot received{.version = version};
    CADRE_RETURN_IF_ERROR(Give(received, receivers, group));
    if (!received.positions.empty()) Push(std::move(received));
  }
  // A rank that leaves may abort the transport.
  return group.Barrier();
}

absl::Status StateVault::Give(Snapshot& snapshot, std::span<const int> receivers,
                              Communicator& group) {
  const Holding mine = HoldingOf(&snapshot);
  const std::string text = mine.ToText();
  // By rank: the size of its text, and its number of tensors.
  const size_t ranks = group.size();
  std::vector<uint64_t> numbers(2 * ranks, 0);
  numbers[group.index()] = text.size();
  numbers[ranks + group.index()] = snapshot.tensors.size();
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(numbers)));
  const uint64_t tensors = *std::max_element(numbers.begin() + group.size(), numbers.end());
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         GiveTexts(text, std::span(numbers).first(ranks), receivers, group));
  std::vector<Holding> given(group.size());
  int64_t received = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (texts[rank].empty()) continue;
    given[rank] = Holding::FromText(texts[rank]);
    if (given[rank].positions.empty()) continue;
    received += given[rank].size();
    snapshot.generation =
        std::max(snapshot.generation, static_cast<uint32_t>(given[rank].generation));
    snapshot.tensors.resize(given[rank].tensors);
  }
  for (uint64_t tensor = 0; tensor < tensors; ++tensor) {
    std::vector<std::span<const std::byte>> send(group.size());
    std::vector<std::span<std::byte>> receive(group.size());
    if (tensor < snapshot.tensors.size()) {
      std::vector<float>& values = snapshot.tensors[tensor];
      int64_t at = mine.size();
      values.resize(at + received);
      const int receiver = receivers[group.index()];
      if (receiver != group.index()) {
        send[receiver] = std::as_bytes(std::span(values).first(at));
      }
      for (int rank = 0; rank < group.size(); ++rank) {
        const int64_t size = given[rank].size();
        receive[rank] = std::as_writable_bytes(std::span(values).subspan(at, size));
        at += size;
      }
    }
    CADRE_RETURN_IF_ERROR(group.AllToAll(send, receive));
  }
  for (const Holding& each : given) {
    snapshot.positions.insert(snapshot.positions.end(), each.positions.begin(),
                              each.positions.end());
  }
  return absl::OkStatus();
}

}  // namespace cadre
