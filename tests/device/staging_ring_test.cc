#include "device/cuda/staging_ring.h"

#include <deque>
#include <random>

#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(StagingRingTest, WrapsAround) {
  StagingRing ring(1024, 8);
  EXPECT_EQ(ring.Take(512)->offset, 0U);
  EXPECT_EQ(ring.Take(500)->offset, 512U);
  EXPECT_FALSE(ring.Take(1));
  ring.Retire();
  EXPECT_EQ(ring.Take(256)->offset, 0U);
  EXPECT_EQ(ring.Take(256)->offset, 256U);
  EXPECT_FALSE(ring.Take(1));
  EXPECT_EQ(ring.oldest().offset, 512U);
}

TEST(StagingRingTest, SkipsAShortEnd) {
  StagingRing ring(1024, 8);
  EXPECT_EQ(ring.Take(512)->offset, 0U);
  EXPECT_EQ(ring.Take(256)->offset, 512U);
  // 256 bytes are free at the end and none before the oldest chunk.
  EXPECT_FALSE(ring.Take(512));
  ring.Retire();
  EXPECT_EQ(ring.Take(512)->offset, 0U);
}

TEST(StagingRingTest, WholeRingFitsWhenEmpty) {
  StagingRing ring(1024, 8);
  ASSERT_TRUE(ring.Take(768));
  ring.Retire();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.Take(1024)->offset, 0U);
}

TEST(StagingRingTest, SlotsAreBounded) {
  StagingRing ring(1 << 20, 2);
  EXPECT_EQ(ring.Take(1)->slot, 0);
  EXPECT_EQ(ring.Take(1)->slot, 1);
  EXPECT_FALSE(ring.Take(1));
  ring.Retire();
  EXPECT_EQ(ring.Take(1)->slot, 0);
}

TEST(StagingRingTest, ChunksInFlightDoNotOverlap) {
  constexpr size_t kBytes = 64 * 256;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    StagingRing ring(kBytes, 16);
    struct Chunk {
      StagingRing::Place place;
      size_t bytes;
    };
    std::deque<Chunk> in_flight;
    for (int i = 0; i < 2000; ++i) {
      const size_t bytes = 1 + random() % kBytes;
      const auto place = ring.Take(bytes);
      if (!place) {
        ASSERT_FALSE(in_flight.empty()) << "an empty ring has room for " << bytes;
        ASSERT_EQ(ring.oldest().offset, in_flight.front().place.offset);
        ring.Retire();
        in_flight.pop_front();
        continue;
      }
      ASSERT_LE(place->offset + bytes, kBytes);
      ASSERT_EQ(place->offset % 256, 0U);
      for (const Chunk& other : in_flight) {
        ASSERT_NE(other.place.slot, place->slot);
        ASSERT_TRUE(place->offset + bytes <= other.place.offset ||
                    other.place.offset + other.bytes <= place->offset);
      }
      in_flight.push_back({*place, bytes});
    }
  }
}

}  // namespace
}  // namespace cadre
