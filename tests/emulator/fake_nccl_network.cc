// Communicators of the fake NCCL: creation and destruction.
#include "tests/emulator/fake_nccl_network.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre::emulated {

void Network::FailNext(absl::string_view function, ncclResult_t result, int64_t after) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back({std::string(function), result, after});
}

void Network::HangInit(int rank) {
  absl::MutexLock lock(&mutex_);
  hanging_.insert(rank);
}

void Network::Kill(int rank) {
  absl::MutexLock lock(&mutex_);
  killed_.insert(rank);
  changed_.SignalAll();
}

void Network::Break(int rank, ncclResult_t error) {
  absl::MutexLock lock(&mutex_);
  broken_[rank] = error;
  for (const auto& [handle, member] : members_) {
    if (member->world_rank == rank) member->error = error;
  }
  changed_.SignalAll();
}

void Network::HangAborts(int rank) {
  absl::MutexLock lock(&mutex_);
  aborts_hang_.insert(rank);
}

void Network::EndAborts() {
  absl::MutexLock lock(&mutex_);
  aborts_hang_.clear();
  changed_.SignalAll();
  while (aborts_ > 0) changed_.Wait(&mutex_);
}

void Network::set_polls(int polls) {
  absl::MutexLock lock(&mutex_);
  polls_ = polls;
}

int64_t Network::calls(absl::string_view function) const {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(std::string(function));
  return found == calls_.end() ? 0 : found->second;
}

int64_t Network::live_communicators() const {
  absl::MutexLock lock(&mutex_);
  return std::ssize(members_);
}

int64_t Network::live_registrations() const {
  absl::MutexLock lock(&mutex_);
  return std::ssize(registrations_);
}

int64_t Network::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_;
}

ncclResult_t Network::Enter(const char* function) {
  ++calls_[function];
  for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
    if (fault->function != function || fault->after-- > 0) continue;
    const ncclResult_t result = fault->result;
    faults_.erase(fault);
    return result;
  }
  return ncclSuccess;
}

Network::Member Network::Find(ncclComm_t comm) const {
  const auto found = members_.find(comm);
  return found == members_.end() ? nullptr : found->second;
}

bool Network::Complete(const Communicator& member) const {
  const auto all_joined = [](const Communicator& one) {
    return one.clique != nullptr && std::ssize(one.clique->joined) == one.clique->size;
  };
  return all_joined(member) && (member.splitting == nullptr || all_joined(*member.splitting));
}

bool Network::Gone(const Communicator& member) const {
  return member.aborted || killed_.count(member.world_rank) > 0 ||
         (member.clique != nullptr && member.clique->disagreed);
}

ncclResult_t Network::Ready(const Communicator& member) const {
  if (member.error != ncclSuccess) return member.error;
  // NCCL returns this while the last call is in progress.
  return Complete(member) && member.polls == 0 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t Network::Started(Communicator& member) {
  if (member.blocking) {
    AwaitComplete(member);
    return member.error;
  }
  member.polls = polls_;
  return Complete(member) && polls_ == 0 ? ncclSuccess : ncclInProgress;
}

void Network::AwaitComplete(const Communicator& member) {
  while (!Complete(member) && !Gone(member) && member.error == ncclSuccess) changed_.Wait(&mutex_);
}

ncclResult_t Network::Version(int* version) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("version"); result != ncclSuccess) return result;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t Network::UniqueId(ncclUniqueId* id) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("unique_id"); result != ncclSuccess) return result;
  // All bytes are used, so that a truncated identifier is detected.
  const uint64_t number = ++ids_;
  for (size_t i = 0; i < sizeof(id->internal); i += sizeof(number)) {
    std::memcpy(id->internal + i, &number, sizeof(number));
  }
  return ncclSuccess;
}

ncclResult_t Network::Init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                           ncclConfig_t* config) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("init"); result != ncclSuccess) return result;
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
  member->devices = EmulatedCuda::ChosenDevices();
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

ncclResult_t Network::SplitComm(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                ncclConfig_t* config) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("split"); result != ncclSuccess) return result;
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

void Network::FinishSplit(const Communicator& parent, Split& split) {
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

ncclResult_t Network::Finalize(ncclComm_t comm) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("finalize"); result != ncclSuccess) return result;
  const Member member = Find(comm);
  if (member == nullptr) return ncclInvalidArgument;
  if (const ncclResult_t result = Ready(*member); result != ncclSuccess) return result;
  return Started(*member);
}

ncclResult_t Network::Destroy(ncclComm_t comm) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("destroy"); result != ncclSuccess) return result;
  return members_.erase(comm) > 0 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t Network::Abort(ncclComm_t comm) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("abort"); result != ncclSuccess) return result;
  const Member member = Find(comm);
  if (member == nullptr) return ncclInvalidArgument;
  member->aborted = true;
  members_.erase(comm);
  changed_.SignalAll();
  ++aborts_;
  while (aborts_hang_.count(member->world_rank) > 0) changed_.Wait(&mutex_);
  --aborts_;
  changed_.SignalAll();
  return ncclSuccess;
}

ncclResult_t Network::AsyncError(ncclComm_t comm, ncclResult_t* error) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("async_error"); result != ncclSuccess) return result;
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

ncclResult_t Network::Register(ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("register_memory"); result != ncclSuccess) return result;
  const Member member = Find(comm);
  if (member == nullptr || memory == nullptr || bytes == 0) return ncclInvalidArgument;
  if (const ncclResult_t result = Ready(*member); result != ncclSuccess) return result;
  auto registration = std::make_unique<char>();
  *handle = registration.get();
  registrations_[*handle] = std::move(registration);
  return ncclSuccess;
}

ncclResult_t Network::Deregister(ncclComm_t comm, void* handle) {
  absl::MutexLock lock(&mutex_);
  if (const ncclResult_t result = Enter("deregister_memory"); result != ncclSuccess) return result;
  if (Find(comm) == nullptr) return ncclInvalidArgument;
  return registrations_.erase(handle) > 0 ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace cadre::emulated
