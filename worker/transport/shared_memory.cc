// Shared-memory links: two single-producer, single-consumer ring buffers per channel and pair of
// ranks.
//
// Each ring has two counters that only grow: `written`, stored by the writer, and `read`, stored by
// the reader, each on a cache line of its own. The difference is the number of bytes in the ring;
// the position in memory is the counter modulo the size, a power of two. Both sides cache the
// other's counter and reload it only when the ring looks full or empty, which avoids most cache
// misses. The design follows the usual Lamport queue with cached indices.
//
// Publication is batched: the writer stores `written` after every kPublishBytes and the reader
// stores `read` after as many, so that both copy at the same time on different parts of the ring.
//
// Sleeping: before a side sleeps it sets its flag and then reads the other's counter; the other
// side stores its counter and then reads the flag. All four operations are sequentially consistent,
// so at least one side sees the other's store (Dekker's argument) and no wakeup is lost. The signal
// itself is a datagram (wakeup.h), sent only if the flag was set: a pair that is busy makes no
// system calls.
//
// Lifetime: the memory is a sealed memfd without a name. The other process opens it through
// /proc/PID/fd/FD, which the kernel permits for processes of the same user and PID namespace, and
// verifies a nonce inside, since a PID or descriptor may have been reused in the meantime. The
// seals prevent a truncation, which would turn accesses into SIGBUS. The kernel frees the memory
// with its last mapping, also after SIGKILL: nothing remains in /dev/shm.
//
// Trust: counters come from another process. A difference larger than the ring is an error and
// never an access outside it.
//
// Limits: one reader and one writer per ring; 1 MiB per direction and channel, committed when
// touched; a peer that dies does not change the ring, its control connection reports the loss.
#include "worker/transport/shared_memory.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/identity.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kRing = SharedSegment::kRingBytes;
constexpr int kRings = 2 * Transport::kChannels;
// The kernel shows the memory's file under this name.
constexpr char kMemoryName[] = "cadre-ring";
// After so many bytes a writer shows them to the reader, and a reader gives the room back, so that
// both are busy at the same time. A reader may hold back room as long as some is left: its peer
// then sees a smaller ring.
constexpr size_t kPublishBytes = size_t{64} << 10;
static_assert(kPublishBytes <= kRing / 8 && (kRing & (kRing - 1)) == 0);

// What the two sides say of one ring. Each line of the cache has one writer, but for the flags of
// sleepers, which are written only when somebody sleeps.
struct Ring {
  // Bytes that were ever put in; ever taken out.
  alignas(kLine) std::atomic<uint64_t> written;
  alignas(kLine) std::atomic<uint64_t> read;
  alignas(kLine) std::atomic<uint32_t> reader_sleeps;
  std::atomic<uint32_t> writer_sleeps;
  // The writer, or the reader, will never come back.
  std::atomic<uint32_t> writer_left;
  std::atomic<uint32_t> reader_left;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The beginning of a segment; the bytes of the rings follow.
struct Directory {
  std::array<char, 32> nonce;
  // By channel: either side shut it down.
  struct alignas(kLine) Broken {
    std::atomic<uint32_t> yes;
  };
  std::array<Broken, Transport::kChannels> broken;
  std::array<Ring, kRings> rings;
};
constexpr size_t kPage = 4096;
constexpr size_t kRingsBegin = (sizeof(Directory) + kPage - 1) / kPage * kPage;
constexpr size_t kSegmentBytes = kRingsBegin + kRings * kRing;

Directory& DirectoryOf(SharedSegment& segment) {
  return *std::launder(reinterpret_cast<Directory*>(segment.data()));
}
std::byte* BytesOf(SharedSegment& segment, int ring) {
  return segment.data() + kRingsBegin + static_cast<size_t>(ring) * kRing;
}

absl::Status Exhausted(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status ClosedError(absl::string_view how) {
  return absl::UnavailableError(absl::StrCat("its end of the shared memory ", how));
}

// The side of a ring that puts in.
class RingWriter {
 public:
  RingWriter(Ring& ring, std::byte* bytes) : ring_(ring), bytes_(bytes) {}

  // Errors: the ring says what cannot be.
  absl::StatusOr<size_t> Room() {
    // What was seen last is enough while it is some.
    if (written_ - read_ == kRing) read_ = ring_.read.load(std::memory_order_acquire);
    const uint64_t held = written_ - read_;
    if (held > kRing) return ClosedError("is in disorder");
    return kRing - static_cast<size_t>(held);
  }
  // Looks again at how much was read.
  void Refresh() { read_ = ring_.read.load(std::memory_order_acquire); }

  // Requires: there is room. Not shown yet.
  void Put(std::span<const std::byte> data) {
    if (data.empty()) return;
    const size_t at = written_ & (kRing - 1);
    const size_t first = std::min(data.size(), kRing - at);
    std::memcpy(bytes_ + at, data.data(), first);
    if (first < data.size()) std::memcpy(bytes_, data.data() + first, data.size() - first);
    written_ += data.size();
  }
  // Shows the reader what was put in. True if it is to be woken.
  bool Publish() {
    // In the one order of all these operations either this load sees the sleeper's flag, or the
    // sleeper, having raised it, sees the new position. So no wake-up is lost.
    ring_.written.store(written_, std::memory_order_seq_cst);
    return ring_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
           ring_.reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }

  // False: there is room, or nobody will make any.
  bool RaiseFlag() {
    ring_.writer_sleeps.store(1, std::memory_order_seq_cst);
    return written_ - ring_.read.load(std::memory_order_seq_cst) == kRing &&
           ring_.reader_left.load(std::memory_order_seq_cst) == 0;
  }
  void LowerFlag() { ring_.writer_sleeps.store(0, std::memory_order_relaxed); }
  bool reader_left() const { return ring_.reader_left.load(std::memory_order_acquire) != 0; }
  // True if the reader is to be woken.
  bool Leave() {
    ring_.writer_left.store(1, std::memory_order_seq_cst);
    return ring_.reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  Ring& ring_;
  std::byte* const bytes_;
  uint64_t written_ = 0;
  // As seen last.
  uint64_t read_ = 0;
};

// The side that takes out.
class RingReader {
 public:
  RingReader(Ring& ring, const std::byte* bytes) : ring_(ring), bytes_(bytes) {}

  // What has arrived, up to the end of the ring; empty: nothing. Errors: nothing will ever come;
  // the ring says what cannot be.
  absl::StatusOr<std::span<const std::byte>> Peek(size_t most) {
    if (written_ == read_) {
      // Before the position: what a writer puts in before it leaves is seen.
      const bool left = ring_.writer_left.load(std::memory_order_acquire) != 0;
      written_ = ring_.written.load(std::memory_order_acquire);
      if (written_ - read_ > kRing) return ClosedError("is in disorder");
      if (written_ == read_ && left) return ClosedError("was left");
    }
    const size_t at = read_ & (kRing - 1);
    const size_t arrived = written_ - read_;
    return std::span(bytes_ + at, std::min({most, arrived, kRing - at}));
  }
  // Takes them out. True if the writer is to be woken.
  bool Take(size_t bytes) {
    read_ += bytes;
    if (read_ - released_ < kPublishBytes) return false;
    released_ = read_;
    ring_.read.store(read_, std::memory_order_seq_cst);
    return ring_.writer_sleeps.load(std::memory_order_seq_cst) != 0 &&
           ring_.writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }

  // False: something has arrived, or nothing ever will.
  bool RaiseFlag() {
    ring_.reader_sleeps.store(1, std::memory_order_seq_cst);
    return ring_.written.load(std::memory_order_seq_cst) == read_ &&
           ring_.writer_left.load(std::memory_order_seq_cst) == 0;
  }
  void LowerFlag() { ring_.reader_sleeps.store(0, std::memory_order_relaxed); }
  // True if the writer is to be woken.
  bool Leave() {
    ring_.reader_left.store(1, std::memory_order_seq_cst);
    return ring_.writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  Ring& ring_;
  const std::byte* const bytes_;
  uint64_t read_ = 0;
  // As the writer knows it.
  uint64_t released_ = 0;
  // As seen last.
  uint64_t written_ = 0;
};

class SharedMemoryLink final : public Link {
 public:
  SharedMemoryLink(std::shared_ptr<SharedSegment> segment, int channel, int side,
                   WakeupHandle handle, LinkKind kind)
      : segment_(std::move(segment)),
        peer_wakeup_(std::move(handle)),
        kind_(kind),
        broken_(DirectoryOf(*segment_).broken[channel].yes),
        out_(RingAt(2 * channel + side), BytesOf(*segment_, 2 * channel + side)),
        in_(RingAt(2 * channel + 1 - side), BytesOf(*segment_, 2 * channel + 1 - side)) {}

  ~SharedMemoryLink() override {
    const bool reader = out_.Leave();
    const bool writer = in_.Leave();
    if (reader || writer) peer_wakeup_.Signal();
  }

  LinkKind kind() const override { return kind_; }

  absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                               std::span<const std::byte> second) override {
    if (IsBroken()) return ClosedError("was shut");
    if (out_.reader_left()) return ClosedError("was left");
    const size_t requested = first.size() + second.size();
    CADRE_ASSIGN_OR_RETURN(size_t room, out_.Room());
    if (room < requested) {
      out_.Refresh();
      CADRE_ASSIGN_OR_RETURN(room, out_.Room());
    }
    if (room == 0) return 0;
    const size_t taken = std::min(room, requested);
    first = first.first(std::min(first.size(), taken));
    second = second.first(taken - first.size());
    out_.Put(first);
    while (true) {
      const size_t bytes = std::min(second.size(), kPublishBytes);
      out_.Put(second.first(bytes));
      if (out_.Publish()) peer_wakeup_.Signal();
      second = second.subspan(bytes);
      if (second.empty()) return taken;
    }
  }

  absl::StatusOr<size_t> Read(std::span<std::byte> into) override {
    if (IsBroken()) return ClosedError("was shut");
    size_t done = 0;
    while (done < into.size()) {
      const auto shown = in_.Peek(std::min(into.size() - done, kPublishBytes));
      if (!shown.ok() && done == 0) return shown.status();
      if (!shown.ok() || shown->empty()) break;
      std::memcpy(into.data() + done, shown->data(), shown->size());
      done += shown->size();
      Consume(shown->size());
    }
    return done;
  }

  absl::StatusOr<std::span<const std::byte>> Peek(size_t most) override {
    if (IsBroken()) return ClosedError("was shut");
    // Little at a time: the writer has the room of it again while the rest is worked on.
    return in_.Peek(std::min(most, kPublishBytes));
  }

  void Consume(size_t bytes) override {
    if (in_.Take(bytes)) peer_wakeup_.Signal();
  }

  bool PrepareWait(bool to_read, bool to_write, std::vector<pollfd>&) override {
    bool nothing = !IsBroken();
    if (to_read && !in_.RaiseFlag()) nothing = false;
    if (to_write && !out_.RaiseFlag()) nothing = false;
    return nothing;
  }

  void EndWait() override {
    in_.LowerFlag();
    out_.LowerFlag();
  }

  // The control connections wake whoever sleeps.
  void Shutdown() override { broken_.store(1, std::memory_order_release); }

 private:
  Ring& RingAt(int ring) { return DirectoryOf(*segment_).rings[ring]; }
  bool IsBroken() const { return broken_.load(std::memory_order_acquire) != 0; }

  // Shared by the links of all channels, and between threads by both sides.
  const std::shared_ptr<SharedSegment> segment_;
  const WakeupHandle peer_wakeup_;
  const LinkKind kind_;
  std::atomic<uint32_t>& broken_;
  RingWriter out_;
  RingReader in_;
};

// What the maker puts at the beginning. The memory is all zeros.
void InitializeDirectory(std::byte* data, absl::string_view nonce) {
  Directory* directory = new (data) Directory();
  CHECK_EQ(nonce.size(), directory->nonce.size());
  std::copy(nonce.begin(), nonce.end(), directory->nonce.begin());
}

absl::StatusOr<std::byte*> Map(int fd, int flags) {
  void* data = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) return Exhausted("mapping shared memory");
  return static_cast<std::byte*>(data);
}

// Whether the descriptor of another process, seen through `path`, is memory that Make made.
bool IsMemory(const std::string& path) {
  std::array<char, 64> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 && absl::StrContains(absl::string_view(target.data(), length), kMemoryName);
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::Make() {
  Socket memory(memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.empty()) return Exhausted("making shared memory");
  if (ftruncate(memory.fd(), kSegmentBytes) != 0) return Exhausted("sizing shared memory");
  // Nobody can take pages away from under the other side.
  if (fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted("sealing shared memory");
  }
  CADRE_ASSIGN_OR_RETURN(std::byte* const data, Map(memory.fd(), MAP_SHARED));
  const std::string nonce = NewIdentity();
  InitializeDirectory(data, nonce);
  std::string description = absl::StrCat(getpid(), " ", memory.fd(), " ", nonce);
  return std::shared_ptr<SharedSegment>(
      new SharedSegment(data, std::move(memory), std::move(description)));
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::MakeForThreads() {
  CADRE_ASSIGN_OR_RETURN(std::byte* const data, Map(-1, MAP_PRIVATE | MAP_ANONYMOUS));
  const std::string nonce = NewIdentity();
  InitializeDirectory(data, nonce);
  return std::shared_ptr<SharedSegment>(new SharedSegment(data, Socket(), ""));
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::Open(absl::string_view description) {
  const std::vector<absl::string_view> parts = absl::StrSplit(description, ' ');
  int pid = 0;
  int fd = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) || !absl::SimpleAtoi(parts[1], &fd) ||
      parts[2].size() != Directory{}.nonce.size()) {
    return absl::FailedPreconditionError("that does not describe shared memory");
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  if (!IsMemory(path)) return absl::NotFoundError(absl::StrCat(path, " is not shared memory"));
  const Socket memory(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (memory.empty()) return ErrnoStatus(errno, "open", path);
  // Of a file that can shrink, pages may go from under us.
  const int seals = fcntl(memory.fd(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not sealed memory"));
  }
  struct stat status {};
  if (fstat(memory.fd(), &status) != 0 || status.st_size != static_cast<off_t>(kSegmentBytes)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has another size"));
  }
  CADRE_ASSIGN_OR_RETURN(std::byte* const data, Map(memory.fd(), MAP_SHARED));
  auto segment = std::shared_ptr<SharedSegment>(new SharedSegment(data, Socket(), ""));
  const Directory& directory = DirectoryOf(*segment);
  if (absl::string_view(directory.nonce.data(), directory.nonce.size()) != parts[2]) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is other memory"));
  }
  return segment;
}

SharedSegment::~SharedSegment() { munmap(data_, kSegmentBytes); }

std::unique_ptr<Link> MakeSharedMemoryLink(std::shared_ptr<SharedSegment> segment, int channel,
                                           int side, WakeupHandle handle, LinkKind kind) {
  CHECK(channel >= 0 && channel < Transport::kChannels && (side == 0 || side == 1));
  return std::make_unique<SharedMemoryLink>(std::move(segment), channel, side, std::move(handle),
                                            kind);
}

}  // namespace cadre
