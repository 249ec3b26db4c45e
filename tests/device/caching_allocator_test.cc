#include "device/cuda/caching_allocator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKib = 1024;
constexpr int64_t kMib = 1024 * kKib;
constexpr int64_t kGib = 1024 * kMib;

// A source of segments: it returns addresses, which are never accessed, up to a limit of bytes.
class Upstream {
 public:
  explicit Upstream(int64_t bytes) : left_(bytes) {}

  MemoryUpstream functions() {
    return {
        .allocate = [this](size_t bytes) { return Allocate(bytes); },
        .free = [this](void* memory) { Free(memory); },
        .settle =
            [this] {
              ++settled_;
              may_free_ = true;
              return settle_status_;
            },
        .available = [this] { return left_; },
    };
  }

  void FailWith(absl::Status status) { fails_ = std::move(status); }
  void FailToSettle(absl::Status status) { settle_status_ = std::move(status); }
  void AllocationDone() { may_free_ = false; }
  // Whether [memory, memory + bytes) lies within one segment.
  bool Holds(const void* memory, int64_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    auto found = segments_.upper_bound(address);
    if (found == segments_.begin()) return false;
    --found;
    return address + bytes <= found->first + found->second;
  }
  int64_t allocated() const {
    int64_t sum = 0;
    for (const auto& [address, bytes] : segments_) sum += bytes;
    return sum;
  }
  size_t segments() const { return segments_.size(); }
  int allocations() const { return allocations_; }
  int settled() const { return settled_; }

 private:
  absl::StatusOr<void*> Allocate(int64_t bytes) {
    ++allocations_;
    if (!fails_.ok()) return fails_;
    if (bytes > left_) return absl::ResourceExhaustedError("no more");
    left_ -= bytes;
    const uintptr_t address = next_;
    // Segments are adjacent, so that the allocator could merge chunks of different segments by
    // mistake.
    next_ += bytes;
    segments_[address] = bytes;
    return reinterpret_cast<void*>(address);
  }
  void Free(void* memory) {
    EXPECT_TRUE(may_free_) << "freed without settling";
    const auto found = segments_.find(reinterpret_cast<uintptr_t>(memory));
    ASSERT_NE(found, segments_.end());
    left_ += found->second;
    segments_.erase(found);
  }

  int64_t left_;
  uintptr_t next_ = uintptr_t{1} << 32;
  std::map<uintptr_t, int64_t> segments_;
  int allocations_ = 0;
  int settled_ = 0;
  bool may_free_ = false;
  absl::Status fails_;
  absl::Status settle_status_;
};

class CachingAllocatorTest : public ::testing::Test {
 protected:
  Upstream upstream_{kGib};
  CachingAllocator allocator_{upstream_.functions(), {.max_held = kGib, .total = kGib}};
};
using CachingAllocatorDeathTest = CachingAllocatorTest;

TEST_F(CachingAllocatorTest, ReusesFreedMemory) {
  const auto first = allocator_.Allocate(100 * kMib, "weights", "");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(allocator_.in_use(), 100 * kMib);
  allocator_.Free(*first);
  EXPECT_EQ(allocator_.in_use(), 0);
  const auto second = allocator_.Allocate(100 * kMib, "gradients", "");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(upstream_.allocations(), 1);
  EXPECT_EQ(upstream_.settled(), 0);
  EXPECT_EQ(allocator_.peak(), 100 * kMib);
}

TEST_F(CachingAllocatorTest, FreedNeighboursAreMergedInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    Upstream upstream(kGib);
    CachingAllocator allocator(upstream.functions(), {.max_held = kGib, .total = kGib});
    std::vector<void*> chunks;
    // Four quarters of a segment of 32 MiB.
    for (int i = 0; i < 4; ++i) chunks.push_back(*allocator.Allocate(8 * kMib, "scratch", ""));
    ASSERT_EQ(upstream.segments(), 1U);
    for (const int i : order) allocator.Free(chunks[i]);
    const auto whole = allocator.Allocate(32 * kMib, "scratch", "");
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(*whole, chunks[0]);
    EXPECT_EQ(upstream.allocations(), 1);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(CachingAllocatorTest, AdjacentSegmentsAreNotMerged) {
  void* const first = *allocator_.Allocate(64 * kMib, "weights", "");
  void* const second = *allocator_.Allocate(64 * kMib, "weights", "");
  allocator_.Free(first);
  allocator_.Free(second);
  ASSERT_TRUE(allocator_.ReleaseCached().ok());
  EXPECT_EQ(upstream_.segments(), 0U);
  EXPECT_EQ(allocator_.held(), 0);
}

TEST_F(CachingAllocatorTest, SmallRequestsShareASegment) {
  void* const large = *allocator_.Allocate(64 * kMib, "activations", "");
  allocator_.Free(large);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(allocator_.Allocate(3, "statistics", "").ok());
  EXPECT_EQ(upstream_.allocations(), 2);
  // The large chunk was not divided.
  EXPECT_EQ(*allocator_.Allocate(64 * kMib, "activations", ""), large);
  EXPECT_EQ(upstream_.allocations(), 2);
}

TEST_F(CachingAllocatorTest, ReleasesCachedSegmentsBeforeItFails) {
  Upstream upstream(kGib);
  CachingAllocator allocator(upstream.functions(), {.max_held = 100 * kMib, .total = kGib});
  std::vector<void*> chunks;
  for (int i = 0; i < 3; ++i) chunks.push_back(*allocator.Allocate(32 * kMib, "weights", ""));
  allocator.Free(chunks[0]);
  allocator.Free(chunks[2]);
  // There are 64 MiB, but not contiguous.
  const auto larger = allocator.Allocate(60 * kMib, "activations", "");
  ASSERT_TRUE(larger.ok()) << larger.status();
  EXPECT_EQ(upstream.settled(), 1);
  EXPECT_EQ(upstream.allocated(), allocator.held());
  EXPECT_LE(allocator.held(), 100 * kMib);
}

TEST_F(CachingAllocatorTest, TakesSmallerSegmentsNearTheLimit) {
  Upstream upstream(kGib);
  CachingAllocator allocator(upstream.functions(), {.max_held = 6 * kMib, .total = kGib});
  // A shared segment would have 32 MiB, one for small requests 8 MiB.
  EXPECT_TRUE(allocator.Allocate(3 * kMib, "weights", "").ok());
  EXPECT_EQ(allocator.held(), 4 * kMib);
  EXPECT_TRUE(allocator.Allocate(1 * kMib, "statistics", "").ok());
  EXPECT_EQ(allocator.held(), 6 * kMib);
  // The next request is served from the rest of the segment for large requests.
  EXPECT_TRUE(allocator.Allocate(1 * kMib, "statistics", "").ok());
  EXPECT_TRUE(allocator.Allocate(1 * kMib, "statistics", "").ok());
  EXPECT_FALSE(allocator.Allocate(1, "statistics", "").ok());
  EXPECT_EQ(allocator.held(), 6 * kMib);
}

TEST_F(CachingAllocatorTest, ErrorListsTheUsesOfMemory) {
  Upstream upstream(100 * kGib);
  CachingAllocator allocator(upstream.functions(), {.max_held = 79 * kGib, .total = 80 * kGib});
  ASSERT_TRUE(allocator.Allocate(60 * kGib, "activations", "").ok());
  ASSERT_TRUE(allocator.Allocate(18 * kGib, "weights", "").ok());
  const auto failed = allocator.Allocate(6 * kGib / 5, "activations", "layer 'conv3'");
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failed.status().message(),
            "cannot allocate 1.2 GiB for activations (layer 'conv3'): the device has 80.0 GiB, "
            "limit 79.0 GiB, in use 78.0 GiB: activations 60.0 GiB, weights 18.0 GiB; free 1.0 "
            "GiB; make the batch smaller, or micro_batches larger");
  // The failure changed nothing.
  EXPECT_EQ(allocator.in_use(), 78 * kGib);
  EXPECT_TRUE(allocator.Allocate(kGib / 2, "scratch", "").ok());
}

TEST_F(CachingAllocatorTest, ErrorReportsFragmentation) {
  Upstream upstream(kGib);
  CachingAllocator allocator(upstream.functions(), {.max_held = 32 * kMib, .total = kGib});
  std::vector<void*> chunks;
  for (int i = 0; i < 8; ++i) chunks.push_back(*allocator.Allocate(4 * kMib, "weights", ""));
  for (size_t i = 0; i < chunks.size(); i += 2) allocator.Free(chunks[i]);
  const absl::Status failed = allocator.Allocate(8 * kMib, "scratch", "").status();
  EXPECT_THAT(failed.message(), HasSubstr("free 16.0 MiB in chunks of at most 4.0 MiB"));
}

TEST_F(CachingAllocatorTest, ErrorReportsAnotherProgram) {
  Upstream upstream(10 * kMib);
  CachingAllocator allocator(upstream.functions(), {.max_held = kGib, .total = kGib});
  const absl::Status failed = allocator.Allocate(20 * kMib, "weights", "").status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(failed.message(), HasSubstr("the driver has only 10.0 MiB left: another program"));
}

TEST_F(CachingAllocatorTest, RejectsImpossibleSizes) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 100, size_t{1} << 62, size_t{kGib + 1}}) {
    EXPECT_EQ(allocator_.Allocate(bytes, "weights", "").status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(upstream_.allocations(), 0);
}

TEST_F(CachingAllocatorTest, ReturnsOtherErrors) {
  Upstream upstream(kGib);
  CachingAllocator allocator(upstream.functions(), {.max_held = 70 * kMib, .total = kGib});
  upstream.FailWith(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(allocator.Allocate(1, "weights", "").status(),
            absl::UnavailableError("the GPU is lost"));
  upstream.FailWith(absl::OkStatus());
  void* const cached = *allocator.Allocate(40 * kMib, "weights", "");
  allocator.Free(cached);
  upstream.FailToSettle(absl::DeadlineExceededError("does not end"));
  EXPECT_EQ(allocator.Allocate(60 * kMib, "weights", "").status().code(),
            absl::StatusCode::kDeadlineExceeded);
  // The segment that could not be released is still usable.
  EXPECT_EQ(*allocator.Allocate(40 * kMib, "weights", ""), cached);
}

TEST_F(CachingAllocatorTest, SumsByPurpose) {
  void* const a = *allocator_.Allocate(10, "weights", "");
  void* const b = *allocator_.Allocate(20, "gradients", "");
  ASSERT_TRUE(allocator_.Allocate(15, "weights", "").ok());
  auto uses = allocator_.uses();
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].purpose, "weights");
  EXPECT_EQ(uses[0].bytes, 25);
  EXPECT_EQ(uses[1].purpose, "gradients");
  allocator_.Free(a);
  allocator_.Free(b);
  uses = allocator_.uses();
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses[0].bytes, 15);
}

TEST_F(CachingAllocatorDeathTest, RejectsForeignMemoryAndDoubleFree) {
  void* const memory = *allocator_.Allocate(10, "weights", "");
  EXPECT_DEATH(allocator_.Free(static_cast<char*>(memory) + 1), "not this allocator's memory");
  allocator_.Free(memory);
  EXPECT_DEATH(allocator_.Free(memory), "not this allocator's memory");
}

TEST(MemoryTextTest, Units) {
  EXPECT_EQ(MemoryText(0), "0 bytes");
  EXPECT_EQ(MemoryText(1023), "1023 bytes");
  EXPECT_EQ(MemoryText(1536), "1.5 KiB");
  EXPECT_EQ(MemoryText(kMib - 1), "1.0 MiB");
  EXPECT_EQ(MemoryText(5 * kGib / 2), "2.5 GiB");
  EXPECT_EQ(MemoryText(3000 * kGib), "2.9 TiB");
}

// A simple model of the allocator's state.
class Model {
 public:
  void Allocated(void* memory, int64_t bytes, const std::string& purpose) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    EXPECT_EQ(address % 512, 0U);
    const auto next = chunks_.lower_bound(address);
    if (next != chunks_.end()) {
      EXPECT_LE(address + bytes, next->first);
    }
    if (next != chunks_.begin()) {
      const auto before = std::prev(next);
      EXPECT_LE(before->first + before->second.bytes, address);
    }
    chunks_[address] = {bytes, purpose};
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  // Removes the `index`-th chunk in the order of addresses.
  void* Take(size_t index) {
    const auto chunk = std::next(chunks_.begin(), index);
    in_use_ -= chunk->second.bytes;
    void* const memory = reinterpret_cast<void*>(chunk->first);
    chunks_.erase(chunk);
    return memory;
  }
  void Check(const CachingAllocator& allocator, const Upstream& upstream) const {
    EXPECT_EQ(allocator.in_use(), in_use_);
    EXPECT_EQ(allocator.peak(), peak_);
    EXPECT_EQ(allocator.held(), upstream.allocated());
    std::map<std::string, int64_t> sums;
    for (const auto& [address, chunk] : chunks_) {
      EXPECT_TRUE(upstream.Holds(reinterpret_cast<void*>(address), chunk.bytes));
      sums[chunk.purpose] += chunk.bytes;
    }
    for (const MemoryUse& use : allocator.uses()) EXPECT_EQ(use.bytes, sums[use.purpose]);
    EXPECT_EQ(allocator.uses().size(), sums.size());
  }
  size_t size() const { return chunks_.size(); }
  int64_t peak() const { return peak_; }
  int64_t in_use() const { return in_use_; }

 private:
  struct Chunk {
    int64_t bytes = 0;
    std::string purpose;
  };
  std::map<uintptr_t, Chunk> chunks_;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

struct RandomCase {
  uint32_t seed;
  int64_t limit;
};

class RandomAllocatorTest : public ::testing::TestWithParam<RandomCase> {};

TEST_P(RandomAllocatorTest, AgreesWithTheModel) {
  std::mt19937 random(GetParam().seed);
  // Sizes from bytes to tens of MiB, equally distributed over the magnitudes.
  const auto bytes = [&random] {
    const double magnitude = std::uniform_real_distribution<double>(0, 25)(random);
    const int64_t size = std::exp2(magnitude);
    return size;
  };
  const std::vector<std::string> purposes = {"weights", "activations", "scratch"};
  const int64_t limit = GetParam().limit;
  Upstream upstream(limit * 2);
  CachingAllocator allocator(upstream.functions(), {.max_held = limit, .total = limit * 2});
  Model model;
  int failures = 0;
  for (int i = 0; i < 6000; ++i) {
    upstream.AllocationDone();
    // Phases of growth alternate with phases of release.
    const bool taking = random() % 100 < (i / 500 % 2 == 0 ? 70U : 40U);
    if (taking || model.size() == 0) {
      const int64_t size = bytes();
      const std::string& purpose = purposes[random() % purposes.size()];
      const auto memory = allocator.Allocate(size, purpose, "");
      if (memory.ok()) {
        model.Allocated(*memory, size, purpose);
      } else {
        ++failures;
        ASSERT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
        // The free memory is too small or fragmented, but at least half of the limit is in use.
        EXPECT_GT(model.in_use() + size, limit / 2);
      }
    } else {
      allocator.Free(model.Take(random() % model.size()));
    }
    ASSERT_LE(allocator.held(), limit);
    if (i % 100 == 0) model.Check(allocator, upstream);
    if (HasFailure()) return;
  }
  model.Check(allocator, upstream);
  EXPECT_EQ(failures > 0, limit < 4 * kGib);
  // The allocator never held more than 3/2 of the peak plus a segment of each kind.
  if (failures == 0) {
    EXPECT_LE(allocator.held(), model.peak() * 3 / 2 + 40 * kMib);
  }
  while (model.size() > 0) allocator.Free(model.Take(model.size() - 1));
  ASSERT_TRUE(allocator.ReleaseCached().ok());
  EXPECT_EQ(upstream.segments(), 0U);
  EXPECT_EQ(allocator.held(), 0);
  EXPECT_EQ(allocator.in_use(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomAllocatorTest,
                         ::testing::Values(RandomCase{1, 64 * kGib}, RandomCase{2, 64 * kGib},
                                           RandomCase{3, 256 * kMib}, RandomCase{4, 256 * kMib},
                                           RandomCase{5, 64 * kMib}));

}  // namespace
}  // namespace cadre
