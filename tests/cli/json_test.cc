#include "cli/json.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(JsonTest, PrintsDefaultsUnderTheirProtoNames) {
  EXPECT_EQ(ToJson(v1::EvaluationResult()),
            R"({"version":0,"step":0,"samples":0,"accuracy":0,"loss":0})");
}

TEST(JsonTest, PrintsWideIntegersAsNumbers) {
  v1::ShardState shard;
  shard.set_digest(std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(ToJson(shard), HasSubstr(R"("digest":"ffffffffffffffff")"));
  v1::WatchUpdate update;
  update.set_time_ms(std::numeric_limits<int64_t>::min());
  EXPECT_THAT(ToJson(update), HasSubstr(R"("time_ms":-9223372036854775808)"));
}

TEST(JsonTest, PrintsShortestNumbersThatReadBackTheSame) {
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(0.1f), "0.1");
  EXPECT_EQ(JsonNumber(1e300), "1e+300");
  EXPECT_EQ(std::stod(JsonNumber(1.0 / 3)), 1.0 / 3);
  EXPECT_EQ(JsonNumber(-0.0), "-0");
}

TEST(JsonTest, NumbersThatJsonCannotSayAreNull) {
  v1::RunStatus run;
  run.set_loss(NAN);
  run.set_epoch(INFINITY);
  run.set_rate(-std::numeric_limits<float>::infinity());
  const std::string json = ToJson(run);
  EXPECT_THAT(json, HasSubstr(R"("loss":null)"));
  EXPECT_THAT(json, HasSubstr(R"("epoch":null)"));
  EXPECT_THAT(json, HasSubstr(R"("rate":null)"));
}

TEST(JsonTest, MapsAreObjectsSortedByKey) {
  v1::GroupStatus group;
  (*group.mutable_mesh())["model"] = 2;
  (*group.mutable_mesh())["data"] = 1;
  EXPECT_THAT(ToJson(group), HasSubstr(R"("mesh":{"data":1,"model":2})"));
  v1::OpenRun open;
  (*open.mutable_generations())[7] = 9;
  EXPECT_THAT(ToJson(open), HasSubstr(R"("generations":{"7":9})"));
}

TEST(JsonTest, EnumsAreLowerCaseNamesWithoutTheirType) {
  v1::RunStatus run;
  run.set_state(v1::RUNNING);
  EXPECT_THAT(ToJson(run), HasSubstr(R"("state":"running")"));
  run.set_state(v1::RUN_STATE_UNSPECIFIED);
  EXPECT_THAT(ToJson(run), HasSubstr(R"("state":"unspecified")"));
  v1::Refused refused;
  refused.set_refusal(v1::REFUSAL_STALE_GENERATION);
  EXPECT_THAT(ToJson(refused), HasSubstr(R"("refusal":"stale_generation")"));
  // From a newer build.
  refused.set_refusal(static_cast<v1::Refusal>(4711));
  EXPECT_THAT(ToJson(refused), HasSubstr(R"("refusal":4711)"));
}

TEST(JsonTest, UnsetMessagesAreNullAndUnsetChoicesAreLeftOut) {
  v1::RunSpec spec;
  EXPECT_THAT(ToJson(spec), HasSubstr(R"("model":null)"));
  v1::Layer* layer = spec.mutable_model()->add_layer();
  layer->set_name("r");
  layer->mutable_relu();
  EXPECT_EQ(ToJson(*layer), R"({"name":"r","input":[],"set":[],"relu":{}})");
}

TEST(JsonTest, EscapesStringsAndEncodesBytes) {
  EXPECT_EQ(JsonString("a\"b\\c\n\t\r\x01\x7f \xc3\xab"),
            "\"a\\\"b\\\\c\\n\\t\\r\\u0001\\u007f \xc3\xab\"");
  v1::Chunk chunk;
  chunk.set_data(std::string("\0\xff", 2));
  EXPECT_THAT(ToJson(chunk), HasSubstr(R"("data":"AP8=")"));
}

TEST(JsonTest, NestsRepeatedMessages) {
  v1::ListReply list;
  list.add_runs()->set_run("a");
  list.add_runs()->set_run("b");
  const std::string json = ToJson(list);
  EXPECT_THAT(json, testing::StartsWith(R"({"runs":[{"run":"a",)"));
  EXPECT_THAT(json, HasSubstr(R"(},{"run":"b",)"));
  EXPECT_THAT(json, Not(HasSubstr("\n")));
}

TEST(JsonObjectTest, KeepsTheOrderOfTheCalls) {
  EXPECT_EQ(JsonObject()
                .Add("z", "text")
                .Add("a", 1.5)
                .Add("m", uint64_t{1} << 63)
                .AddRaw("list", "[1]")
                .Text(),
            R"({"z":"text","a":1.5,"m":9223372036854775808,"list":[1]})");
  EXPECT_EQ(JsonObject().Text(), "{}");
}

TEST(IndentTest, BreaksLinesOutsideStringsOnly) {
  EXPECT_EQ(Indent(R"({"a":[1,{"b":"x,{\"]"}],"c":{},"d":[]})"),
            "{\n"
            "  \"a\": [\n"
            "    1,\n"
            "    {\n"
            "      \"b\": \"x,{\\\"]\"\n"
            "    }\n"
            "  ],\n"
            "  \"c\": {},\n"
            "  \"d\": []\n"
            "}");
}

}  // namespace
}  // namespace cadre
