#include "lab/round_traffic.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/frame.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

class RoundTrafficTest : public ::testing::Test {
 protected:
  // Tensors of many units, of one, and of one dimension, and running statistics.
  const v1::RunSpec spec_ = testing::SpecOf(R"(
      model {
        input { channels: 3 height: 8 width: 8 }
        layer { name: "conv" convolution { out_channels: 16 kernel: 3 padding: 1 } }
        layer { name: "norm" batch_norm {} }
        layer { name: "fc" fully_connected { out_features: 77 } }
        layer { name: "loss" softmax_cross_entropy {} } })");
  const ParameterIndex index_ = *ParameterIndex::FromModel(spec_.model());
};

TEST_F(RoundTrafficTest, ValuesAreFp32) {
  const RoundTraffic traffic = RoundTrafficOf({}, index_);
  EXPECT_EQ(traffic.bytes_up, 4 * index_.size());
  EXPECT_EQ(traffic.bytes_down, 4 * index_.size());
  EXPECT_EQ(traffic.bytes(), 8 * index_.size());
}

// The bytes are those of the frames that groups and aggregators exchange.
TEST_F(RoundTrafficTest, BytesAreThoseOfFrames) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(index_.size());
  for (float& value : values) value = normal(random);
  const ExchangeUnits units(index_);
  for (const v1::Codec codec :
       {v1::CODEC_BF16, v1::CODEC_INT8, v1::CODEC_E3M0, v1::CODEC_STAT2, v1::CODEC_TOPK}) {
    v1::Averaging averaging;
    averaging.mutable_up()->set_codec(codec);
    const RoundTraffic up = RoundTrafficOf(averaging, index_);
    EXPECT_EQ(up.bytes_down, 4 * index_.size());
    std::string frame;
    ASSERT_TRUE(EncodeFrame(units.all(), CodecOf(*CodingOf(averaging.up())), values, &frame).ok());
    EXPECT_GE(up.bytes_up, std::ssize(frame)) << v1::Codec_Name(codec);
    // The length of the codes of the largest values depends on the values.
    const int64_t slack = codec == v1::CODEC_TOPK ? up.bytes_up / 5 : 0;
    EXPECT_LE(up.bytes_up, std::ssize(frame) + slack) << v1::Codec_Name(codec);
    averaging.Clear();
    averaging.mutable_down()->set_codec(codec);
    EXPECT_EQ(RoundTrafficOf(averaging, index_).bytes_down, up.bytes_up);
  }
}

}  // namespace
}  // namespace cadre
