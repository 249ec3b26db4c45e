#include "server/chunk_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

// The bytes in slices of these sizes, the last of which is repeated.
grpc::ByteBuffer Sliced(const std::string& bytes, std::vector<size_t> sizes) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t size = std::min(sizes.front(), bytes.size() - begin);
    if (sizes.size() > 1) sizes.erase(sizes.begin());
    slices.emplace_back(bytes.data() + begin, size);
    begin += size;
  }
  return {slices.data(), slices.size()};
}

std::string DataOf(const ChunkView& chunk) { return absl::StrJoin(chunk.data, ""); }

TEST(ChunkViewTest, ReadsSlices) {
  v1::StageRequest request;
  *request.mutable_chunk() = MakeChunk(300, Values(1, 1000));
  const std::string bytes = request.SerializeAsString();
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{bytes.size()}, {1}, {2, 3, 1, 700}, {9, 4000}, {bytes.size() - 1, 1}}) {
    grpc::ByteBuffer message = Sliced(bytes, sizes);
    ChunkView chunk;
    ASSERT_TRUE(ReadChunk(message, &chunk));
    EXPECT_EQ(chunk.index, 300u);
    EXPECT_EQ(chunk.crc32c, request.chunk().crc32c());
    EXPECT_EQ(chunk.bytes(), 4000);
    EXPECT_EQ(DataOf(chunk), request.chunk().data());
  }
}

TEST(ChunkViewTest, RefusesOtherMessages) {
  ChunkView chunk;
  grpc::ByteBuffer empty = Sliced("", {1});
  EXPECT_FALSE(ReadChunk(empty, &chunk));
  v1::StageRequest request;
  request.mutable_header()->set_run("run");
  grpc::ByteBuffer header = Sliced(request.SerializeAsString(), {5});
  EXPECT_FALSE(ReadChunk(header, &chunk));
  request.mutable_chunk();
  grpc::ByteBuffer without_fields = Sliced(request.SerializeAsString(), {5});
  EXPECT_TRUE(ReadChunk(without_fields, &chunk));
  EXPECT_EQ(chunk.bytes(), 0);
}

// Whatever the bytes are, the result is that of the parser of protocol buffers.
TEST(ChunkViewTest, AgreesWithTheParser) {
  std::mt19937 random(1);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  v1::StageRequest valid;
  *valid.mutable_chunk() = MakeChunk(7, Values(2, 8));
  // Fields in another order, twice, and unknown ones.
  std::string fields = valid.chunk().SerializeAsString();
  fields += std::string("\x08\x2a\x7a\x02hi\x12\x04more", 12);
  const std::vector<std::string> seeds = {
      valid.SerializeAsString(), valid.SerializeAsString() + valid.SerializeAsString(),
      std::string("\x12") + static_cast<char>(fields.size()) + fields};
  int chunks = 0;
  int refused = 0;
  for (int i = 0; i < 30'000; ++i) {
    std::string bytes = seeds[below(seeds.size())];
    for (size_t change = below(3); change > 0 && !bytes.empty(); --change) {
      const size_t at = below(bytes.size());
      const size_t kind = below(3);
      if (kind == 0) bytes[at] = static_cast<char>(below(256));
      if (kind == 1) bytes.erase(at, 1 + below(4));
      if (kind == 2) bytes.insert(at, 1, static_cast<char>(below(64)));
    }
    grpc::ByteBuffer message = Sliced(bytes, {1 + below(3), 1 + below(20)});
    ChunkView chunk;
    const bool read = ReadChunk(message, &chunk);
    v1::StageRequest parsed;
    const bool is_chunk = parsed.ParseFromString(bytes) && parsed.has_chunk();
    // A header before the chunk is refused.
    if (is_chunk && !read) {
      ASSERT_TRUE(bytes.find('\x0a') != std::string::npos) << ::testing::PrintToString(bytes);
      continue;
    }
    ASSERT_EQ(read, is_chunk) << ::testing::PrintToString(bytes);
    ++(read ? chunks : refused);
    if (!read) continue;
    ASSERT_EQ(chunk.index, parsed.chunk().index());
    ASSERT_EQ(chunk.crc32c, parsed.chunk().crc32c());
    ASSERT_EQ(DataOf(chunk), parsed.chunk().data());
  }
  EXPECT_GT(chunks, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cadre::testing
