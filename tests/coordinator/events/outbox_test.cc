#include "coordinator/events/outbox.h"

#include <gtest/gtest.h>

#include "proto/cadre/v1/records.pb.h"

namespace cadre {
namespace {

TEST(OutboxTest, OrderOfActions) {
  Outbox out;
  v1::MetaRecord meta;
  out.SendTo(3, v1::CoordinatorMessage());
  meta.set_run(1);
  out.Put("b", meta);
  out.Put("group/run-1/0", meta);
  meta.set_run(2);
  out.Put("b", meta);
  out.Put("a", meta);
  out.EraseBelow("group/run-1/");
  const std::vector<Action> actions = out.Take();
  ASSERT_EQ(actions.size(), 4u);
  EXPECT_EQ(std::get<Store::Op>(actions[0]).kind, Store::Op::Kind::kErasePrefix);
  EXPECT_EQ(std::get<Store::Op>(actions[1]).key, "a");
  EXPECT_EQ(std::get<Store::Op>(actions[2]).key, "b");
  EXPECT_EQ(std::get<Store::Op>(actions[2]).value, meta.SerializeAsString());
  EXPECT_EQ(std::get<Send>(actions[3]).connection, 3u);
  EXPECT_TRUE(out.Take().empty());
}

TEST(OutboxTest, PutAfterErase) {
  Outbox out;
  v1::MetaRecord meta;
  out.EraseOne("a");
  out.Put("a", meta);
  const std::vector<Action> actions = out.Take();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<Store::Op>(actions[0]).kind, Store::Op::Kind::kErase);
  EXPECT_EQ(std::get<Store::Op>(actions[1]).kind, Store::Op::Kind::kPut);
}

}  // namespace
}  // namespace cadre
