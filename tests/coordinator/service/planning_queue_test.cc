#include "coordinator/service/planning_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <variant>

namespace cadre {
namespace {

SearchPlans Search(const std::string& key, bool urgent) {
  return {.run = "run-1", .key = key, .urgent = urgent};
}

PredictStep Prediction(uint32_t group, double measured, uint32_t generation = 1) {
  return {.run = "run-1", .group = group, .generation = generation, .measured = measured};
}

// The key of a search, or the group, generation and measured time of a prediction.
std::string Take(PlanningQueue& queue) {
  const auto work = queue.Pop();
  if (!work.has_value()) return "closed";
  if (const auto* search = std::get_if<SearchPlans>(&*work)) return search->key;
  const auto& predict = std::get<PredictStep>(*work);
  return std::to_string(predict.group) + "#" + std::to_string(predict.generation) +
         (predict.measured > 0 ? " measured" : "");
}

TEST(PlanningQueueTest, GroupsThatWaitGoFirstThenPredictions) {
  PlanningQueue queue;
  queue.Push(Search("improve", false));
  queue.Push(Prediction(3, 0));
  queue.Push(Search("first", true));
  queue.Push(Prediction(2, 0));
  queue.Push(Search("second", true));
  for (const char* each : {"first", "second", "3#1", "2#1", "improve"})
    EXPECT_EQ(Take(queue), each);
}

TEST(PlanningQueueTest, SearchThatBecomesUrgentIsDoneOnce) {
  PlanningQueue queue;
  queue.Push(Search("a", false));
  queue.Push(Search("b", false));
  queue.Push(Search("b", true));
  queue.Push(Search("c", false));
  for (const char* each : {"b", "a", "c"}) EXPECT_EQ(Take(queue), each);
}

TEST(PlanningQueueTest, NewerPredictionReplacesTheOlderOneOfTheGroup) {
  PlanningQueue queue;
  queue.Push(Prediction(1, 0));
  queue.Push(Prediction(1, 2));
  queue.Push(Prediction(2, 2));
  queue.Push(Prediction(1, 3, /*generation=*/2));
  for (const char* each : {"1#1", "1#2 measured", "2#1 measured"}) EXPECT_EQ(Take(queue), each);
  queue.Push(Prediction(1, 4, /*generation=*/3));
  EXPECT_EQ(Take(queue), "1#3 measured");
}

TEST(PlanningQueueTest, EndOfTheQueueEndsTheWait) {
  PlanningQueue queue;
  std::thread waiting([&] { EXPECT_EQ(Take(queue), "closed"); });
  queue.Close();
  waiting.join();
  queue.Push(Search("a", true));
  EXPECT_EQ(Take(queue), "closed");
}

}  // namespace
}  // namespace cadre
