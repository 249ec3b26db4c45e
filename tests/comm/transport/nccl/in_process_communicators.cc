#include "tests/comm/transport/nccl/in_process_communicators.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace cadre::in_process {

void Communicators::HangInit(int rank) {
  absl::MutexLock lock(&mutex_);
  hanging_.insert(rank);
}

void Communicators::Kill(int rank) {
  absl::MutexLock lock(&mutex_);
  killed_.insert(rank);
  changed_.SignalAll();
}

void Communicators::Break(int rank, ncclResult_t error) {
  absl::MutexLock lock(&mutex_);
  broken_[rank] = error;
  for (const auto& [handle, member] : members_) {
    if (member->world_rank == rank) member->error = error;
  }
  changed_.SignalAll();
}

void Communicators::HangAborts(int rank) {
  absl::MutexLock lock(&mutex_);
  aborts_hang_.insert(rank);
}

void Communicators::EndAborts() {
  absl::MutexLock lock(&mutex_);
  aborts_hang_.clear();
  changed_.SignalAll();
  while (aborts_ > 0) changed_.Wait(&mutex_);
}

void Communicators::set_polls(int polls) {
  absl::MutexLock lock(&mutex_);
  polls_ = polls;
}

int64_t Communicators::live_communicators() const {
  absl::MutexLock lock(&mutex_);
  return std::ssize(members_);
}

int64_t Communicators::live_registrations() const {
  absl::MutexLock lock(&mutex_);
  return std::ssize(registrations_);
}

Communicators::Member Communicators::Find(ncclComm_t comm) const {
  const auto found = members_.find(comm);
  return found == members_.end() ? nullptr : found->second;
}

bool Communicators::Complete(const Communicator& member) const {
  const auto all_joined = [](const Communicator& one) {
    return one.clique != nullptr && std::ssize(one.clique->joined) == one.clique->size;
  };
  return all_joined(member) && (member.splitting == nullptr || all_joined(*member.splitting));
}

bool Communicators::Gone(const Communicator& member) const {
  return member.aborted || killed_.count(member.world_rank) > 0 ||
         (member.clique != nullptr && !member.clique->failure.empty());
}

ncclResult_t Communicators::Ready(const Communicator& member) const {
  if (member.error != ncclSuccess) return member.error;
  // NCCL returns this while the last call is in progress.
  return Complete(member) && member.polls == 0 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t Communicators::Started(Communicator& member) {
  if (member.blocking) {
    AwaitComplete(member);
    return member.error;
  }
  member.polls = polls_;
  return Complete(member) && polls_ == 0 ? ncclSuccess : ncclInProgress;
}

void Communicators::AwaitComplete(const Communicator& member) {
  while (!Complete(member) && !Gone(member) && member.error == ncclSuccess) changed_.Wait(&mutex_);
}

void Communicators::BreakClique(Clique& clique, ncclResult_t error, const std::string& what) {
  if (!clique.failure.empty()) return;
  clique.failure = absl::StrCat(clique.name, ": ", what);
  for (const auto& [handle, member] : members_) {
    if (member->clique.get() == &clique) member->error = error;
  }
  changed_.SignalAll();
}

ncclResult_t Communicators::UniqueId(ncclUniqueId* id) {
  absl::MutexLock lock(&mutex_);
  // All bytes are used, so that a truncated identifier is detected.
  const uint64_t number = ++ids_;
  for (size_t i = 0; i < sizeof(id->internal); i += sizeof(number)) {
    std::memcpy(id->internal + i, &number, sizeof(number));
  }
  return ncclSuccess;
}

ncclResult_t Communicators::Init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                 ncclConfig_t* config) {
  absl::MutexLock lock(&mutex_);
  constexpr unsigned kMagic = 0xCAFEBEEF;
  if (config != nullptr && (config->magic != kMagic || config->size != sizeof(*config))) {
    return ncclInvalidArgument;
  }
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  for (size_t i = 0; i < sizeof(id.internal); i += sizeof(number)) {
    if (std::memcmp(id.internal + i, &number, sizeof(number)) != 0) return ncclInvalidArgument;
  }
  if (number == 0 || number > ids_ || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  auto& clique = cliques_[number];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->name = absl::StrCat("communicator ", number);
    clique->size = ranks;
  }
  if (clique->size != ranks || clique->joined.count(rank) > 0) return ncclInvalidArgument;
  auto member = std::make_shared<Communicator>();
  member->clique = clique;
  member->rank = member->world_rank = rank;
  member->devices = CurrentDevices();
  member->blocking = config == nullptr || config->blocking != 0;
  if (const auto broken = broken_.find(rank); broken != broken_.end()) {
    member->error = broken->second;
  }
  if (hanging_.count(rank) == 0 && killed_.count(rank) == 0) clique->joined.insert(rank);
  changed_.SignalAll();
  members_[member.get()] = member;
  *comm = reinterpret_cast<ncclComm_t>(member.get());
  return Started(*member);
}

ncclResult_t Communicators::SplitComm(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                      ncclConfig_t* config) {
  absl::MutexLock lock(&mutex_);
  const Member parent = Find(comm);
  if (parent == nullptr || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  if (const ncclResult_t result = Ready(*parent); result != ncclSuccess) return result;
  auto child = std::make_shared<Communicator>();
  child->world_rank = parent->world_rank;
  child->devices = parent->devices;
  child->blocking = parent->blocking;
  if (config != nullptr && config->blocking != NCCL_CONFIG_UNDEF_INT) {
    child->blocking = config->blocking != 0;
  }
  Split& split = parent->clique->splits[parent->next_split++];
  parent->splitting = child;
  *made = nullptr;
  if (color != NCCL_SPLIT_NOCOLOR) {
    members_[child.get()] = child;
    *made = reinterpret_cast<ncclComm_t>(child.get());
  }
  if (killed_.count(parent->world_rank) == 0) {
    split.parts.push_back({color, key, parent->rank, child});
  }
  if (std::ssize(split.parts) == parent->clique->size) FinishSplit(*parent, split);
  const ncclResult_t result = Started(*parent);
  child->polls = parent->polls;
  return result;
}

void Communicators::FinishSplit(const Communicator& parent, Split& split) {
  auto& parts = split.parts;
  std::sort(parts.begin(), parts.end(), [](const Split::Part& a, const Split::Part& b) {
    return std::tie(a.color, a.key, a.rank) < std::tie(b.color, b.key, b.rank);
  });
  std::shared_ptr<Clique> clique;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == 0 || parts[i].color != parts[i - 1].color) {
      clique = std::make_shared<Clique>();
      clique->name = absl::StrCat(parent.clique->name, ", color ", parts[i].color);
    }
    Communicator& made = *parts[i].made;
    made.clique = clique;
    made.rank = clique->size++;
    clique->joined.insert(made.rank);
  }
  parts.clear();
  changed_.SignalAll();
}

ncclResult_t Communicators::Finalize(ncclComm_t comm) {
  absl::MutexLock lock(&mutex_);
  const Member member = Find(comm);
  if (member == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = Ready(*member); result != ncclSuccess) return result;
  return Started(*member);
}

ncclResult_t Communicators::Destroy(ncclComm_t comm) {
  absl::MutexLock lock(&mutex_);
  return members_.erase(comm) > 0 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t Communicators::Abort(ncclComm_t comm) {
  absl::MutexLock lock(&mutex_);
  const Member member = Find(comm);
  if (member == nullptr) return ncclInvalidArgument;
  member->aborted = true;
  members_.erase(comm);
  if (options_.aborts_break_peers && member->clique != nullptr) {
    BreakClique(*member->clique, ncclRemoteError,
                absl::StrCat("rank ", member->rank, " aborted it"));
  }
  changed_.SignalAll();
  ++aborts_;
  while (aborts_hang_.count(member->world_rank) > 0) changed_.Wait(&mutex_);
  --aborts_;
  changed_.SignalAll();
  return ncclSuccess;
}

ncclResult_t Communicators::AsyncError(ncclComm_t comm, ncclResult_t* error) {
  absl::MutexLock lock(&mutex_);
  const Member member = Find(comm);
  if (member == nullptr) return ncclInvalidArgument;
  *error = member->error;
  if (member->error != ncclSuccess) return ncclSuccess;
  if (!Complete(*member)) {
    *error = ncclInProgress;
  } else if (member->polls > 0) {
    --member->polls;
    *error = ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t Communicators::Register(ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  absl::MutexLock lock(&mutex_);
  const Member member = Find(comm);
  if (member == nullptr || memory == nullptr || bytes == 0) return ncclInvalidArgument;
  if (const ncclResult_t result = Ready(*member); result != ncclSuccess) return result;
  auto registration = std::make_unique<char>();
  *handle = registration.get();
  registrations_[*handle] = std::move(registration);
  return ncclSuccess;
}

ncclResult_t Communicators::Deregister(ncclComm_t comm, void* handle) {
  absl::MutexLock lock(&mutex_);
  if (Find(comm) == nullptr) return ncclInvalidArgument;
  return registrations_.erase(handle) > 0 ? ncclSuccess : ncclInvalidArgument;
}

const char* Communicators::LastError(ncclComm_t comm) {
  static thread_local std::string text;
  absl::MutexLock lock(&mutex_);
  const Member member = Find(comm);
  text = member == nullptr || member->clique == nullptr ? "" : member->clique->failure;
  return text.c_str();
}

}  // namespace cadre::in_process
