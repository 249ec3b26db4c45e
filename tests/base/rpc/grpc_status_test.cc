#include "base/rpc/grpc_status.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(GrpcStatusTest, RoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), code);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

TEST(GrpcStatusTest, CodesAreEqual) {
  EXPECT_EQ(ToGrpc(absl::UnavailableError("")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ToGrpc(absl::AbortedError("")).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ToGrpc(absl::DataLossError("")).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(FromGrpc({grpc::StatusCode::NOT_FOUND, "x"}), absl::NotFoundError("x"));
}

}  // namespace
}  // namespace cadre
