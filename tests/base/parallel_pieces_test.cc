#include "base/parallel_pieces.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"

namespace cadre::testing {
namespace {

TEST(ParallelPiecesTest, AreAppendedInOrder) {
  for (const int threads : {1, 2, 9}) {
    std::vector<int64_t> computed(5);
    std::vector<int64_t> ends;
    const auto compute = [&](int thread, int64_t begin, int64_t) {
      EXPECT_LT(thread, threads);
      ++computed[begin / 10];
      return absl::OkStatus();
    };
    const auto append = [&](int, int64_t begin, int64_t end) {
      EXPECT_EQ(begin, ends.empty() ? 0 : ends.back());
      ends.push_back(end);
      return absl::OkStatus();
    };
    EXPECT_EQ(ForEachPiece(Pieces::OfSize(41, 10), threads, compute, append), absl::OkStatus());
    EXPECT_EQ(computed, std::vector<int64_t>(5, 1));
    EXPECT_EQ(ends, (std::vector<int64_t>{10, 20, 30, 40, 41}));
  }
}

// Two pieces are computed at the same time, or this test would not end.
TEST(ParallelPiecesTest, AreComputedConcurrently) {
  auto* const both = new absl::Barrier(2);
  const auto compute = [&](int, int64_t, int64_t) {
    if (both->Block()) delete both;
    return absl::OkStatus();
  };
  const auto append = [](int, int64_t, int64_t) { return absl::OkStatus(); };
  EXPECT_EQ(ForEachPiece(Pieces::OfSize(2, 1), 2, compute, append), absl::OkStatus());
}

TEST(ParallelPiecesTest, FirstErrorEndsTheLoop) {
  for (const int threads : {1, 3}) {
    int appended = 0;
    const auto compute = [&](int, int64_t begin, int64_t) -> absl::Status {
      return begin >= 2 ? absl::InternalError(absl::StrCat(begin)) : absl::OkStatus();
    };
    const auto append = [&](int, int64_t, int64_t) {
      ++appended;
      return absl::OkStatus();
    };
    EXPECT_EQ(ForEachPiece(Pieces::OfSize(6, 1), threads, compute, append),
              absl::InternalError("2"));
    EXPECT_EQ(appended, 2);
    const auto fails = [&](int, int64_t, int64_t) {
      return absl::DataLossError(absl::StrCat(++appended));
    };
    const auto succeeds = [](int, int64_t, int64_t) { return absl::OkStatus(); };
    EXPECT_EQ(ForEachPiece(Pieces::OfSize(6, 1), threads, succeeds, fails),
              absl::DataLossError("3"));
  }
}

TEST(ParallelPiecesTest, NoPieces) {
  const auto fails = [](int, int64_t, int64_t) { return absl::InternalError("called"); };
  EXPECT_EQ(ForEachPiece(Pieces::OfSize(0, 4), 4, fails, fails), absl::OkStatus());
}

}  // namespace
}  // namespace cadre::testing
