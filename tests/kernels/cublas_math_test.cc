// Matrix products through a fake cuBLASLt on an emulated device: operands, batches, bias, cached
// plans, graph capture, and failures. library_math_test.cc runs the library itself on a GPU.
#include "kernels/cuda/cublas_math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/error_reason.h"
#include "kernels/backend.h"
#include "kernels/cuda/scratch.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// --- the fake library, which is column-major ----------------------------------------------------

struct FakeDescription {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct FakeLayout {
  cudaDataType type = CUDA_R_32F;
  int64_t rows = 0, columns = 0, leading = 0;
  int32_t batch = 1;
  int64_t step = 0;

  float Get(const void* data, int64_t batch_at, int64_t row, int64_t column) const {
    const int64_t at = batch_at * step + column * leading + row;
    return type == CUDA_R_32F ? static_cast<const float*>(data)[at]
                              : FromBf16(static_cast<const uint16_t*>(data)[at]);
  }
  void Set(void* data, int64_t batch_at, int64_t row, int64_t column, float value) const {
    const int64_t at = batch_at * step + column * leading + row;
    if (type == CUDA_R_32F) {
      static_cast<float*>(data)[at] = value;
    } else {
      static_cast<uint16_t*>(data)[at] = ToBf16(value);
    }
  }
};

// State of the fake's functions (which have no object): what they return, and counts of their
// calls.
struct FakeState {
  int handles = 0, objects = 0, suggestions = 0, products = 0;
  uint64_t algorithm = 0;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  uint32_t alignments[4] = {};
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  // The states of the algorithms that the heuristic returns.
  std::vector<cublasStatus_t> states = {CUBLAS_STATUS_SUCCESS};
  cublasStatus_t suggestion = CUBLAS_STATUS_SUCCESS, product = CUBLAS_STATUS_SUCCESS;
};
FakeState fake;

template <typename Fake, typename Opaque>
Fake* Of(Opaque* object) {
  return reinterpret_cast<Fake*>(object);
}

void MultiplyOnHost(const FakeDescription& d, float alpha, const void* a, const FakeLayout& first,
                    const void* b, const FakeLayout& second, float beta, void* c,
                    const FakeLayout& result) {
  const bool turn_a = d.first == CUBLAS_OP_T, turn_b = d.second == CUBLAS_OP_T;
  const int64_t inner = turn_a ? first.rows : first.columns;
  FakeLayout bias{.type = result.type};
  for (int64_t s = 0; s < result.batch; ++s) {
    for (int64_t column = 0; column < result.columns; ++column) {
      for (int64_t row = 0; row < result.rows; ++row) {
        float sum = 0;
        for (int64_t i = 0; i < inner; ++i) {
          sum += (turn_a ? first.Get(a, s, i, row) : first.Get(a, s, row, i)) *
                 (turn_b ? second.Get(b, s, column, i) : second.Get(b, s, i, column));
        }
        sum *= alpha;
        if (beta != 0) sum += beta * result.Get(c, s, row, column);
        if (d.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += bias.Get(d.bias, 0, row, 0);
        result.Set(c, s, row, column, sum);
      }
    }
  }
}

void FakeHandles(CublasLtApi& api) {
  api.create = [](cublasLtHandle_t* handle) {
    ++fake.handles;
    *handle = reinterpret_cast<cublasLtHandle_t>(&fake);
    return CUBLAS_STATUS_SUCCESS;
  };
  api.destroy = [](cublasLtHandle_t) {
    --fake.handles;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.version = []() -> size_t { return 130100; };
  api.status_text = [](cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "it is not supported" : "it did not work";
  };
}

void FakeDescriptions(CublasLtApi& api) {
  api.description_create = [](cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                              cudaDataType_t scale) {
    EXPECT_EQ(scale, CUDA_R_32F);
    ++fake.objects;
    *made = reinterpret_cast<cublasLtMatmulDesc_t>(new FakeDescription{.compute = compute});
    return CUBLAS_STATUS_SUCCESS;
  };
  api.description_destroy = [](cublasLtMatmulDesc_t description) {
    --fake.objects;
    delete Of<FakeDescription>(description);
    return CUBLAS_STATUS_SUCCESS;
  };
  api.description_set = [](cublasLtMatmulDesc_t description,
                           cublasLtMatmulDescAttributes_t attribute, const void* value,
                           size_t bytes) {
    FakeDescription& d = *Of<FakeDescription>(description);
    void* const to = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? static_cast<void*>(&d.first)
                     : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? static_cast<void*>(&d.second)
                     : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? static_cast<void*>(&d.epilogue)
                                                                  : static_cast<void*>(&d.bias);
    EXPECT_EQ(bytes, attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? 8U : 4U);
    std::memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
}

void FakeLayouts(CublasLtApi& api) {
  api.layout_create = [](cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                         uint64_t columns, int64_t leading) {
    ++fake.objects;
    const int64_t row_count = rows, column_count = columns;
    EXPECT_GE(leading, row_count);
    *made = reinterpret_cast<cublasLtMatrixLayout_t>(new FakeLayout{
        .type = type, .rows = row_count, .columns = column_count, .leading = leading});
    return CUBLAS_STATUS_SUCCESS;
  };
  api.layout_destroy = [](cublasLtMatrixLayout_t layout) {
    --fake.objects;
    delete Of<FakeLayout>(const_cast<void*>(static_cast<const void*>(layout)));
    return CUBLAS_STATUS_SUCCESS;
  };
  api.layout_set = [](cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                      const void* value, size_t bytes) {
    FakeLayout& l = *Of<FakeLayout>(const_cast<void*>(static_cast<const void*>(layout)));
    const bool count = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    EXPECT_EQ(bytes, count ? 4U : 8U);
    std::memcpy(count ? static_cast<void*>(&l.batch) : static_cast<void*>(&l.step), value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
}

void FakePreferences(CublasLtApi& api) {
  api.preference_create = [](cublasLtMatmulPreference_t* made) {
    ++fake.objects;
    *made = reinterpret_cast<cublasLtMatmulPreference_t>(&fake);
    return CUBLAS_STATUS_SUCCESS;
  };
  api.preference_destroy = [](cublasLtMatmulPreference_t) {
    --fake.objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.preference_set = [](cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t what,
                          const void* value, size_t bytes) {
    if (what >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) {
      EXPECT_EQ(bytes, 4U);
      std::memcpy(&fake.alignments[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                  bytes);
    }
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
      EXPECT_EQ(bytes, 4U);
      std::memcpy(&fake.reductions, value, bytes);
    }
    return CUBLAS_STATUS_SUCCESS;
  };
}

void FakeProducts(CublasLtApi& api) {
  api.suggest = [](cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t,
                   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                   cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t* found,
                   int* count) {
    EXPECT_GE(wanted, std::ssize(fake.states));
    ++fake.suggestions;
    fake.compute = Of<FakeDescription>(description)->compute;
    if (fake.suggestion != CUBLAS_STATUS_SUCCESS) return fake.suggestion;
    *count = std::ssize(fake.states);
    for (int i = 0; i < *count; ++i) {
      const bool works = fake.states[i] == CUBLAS_STATUS_SUCCESS;
      found[i] = {.workspaceSize = works ? 1000U : 99U, .state = fake.states[i]};
      // Which algorithm this is; opaque to callers.
      found[i].algo.data[0] = i;
    }
    return CUBLAS_STATUS_SUCCESS;
  };
  api.multiply = [](cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                    const void* a, cublasLtMatrixLayout_t first, const void* b,
                    cublasLtMatrixLayout_t second, const void* beta, const void* c,
                    cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t result,
                    const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                    cudaStream_t stream) {
    ++fake.products;
    fake.algorithm = algorithm->data[0];
    if (fake.product != CUBLAS_STATUS_SUCCESS) return fake.product;
    EXPECT_EQ(c, d);
    EXPECT_EQ(bytes, 1000U);
    EXPECT_TRUE(EmulatedCuda::OnDevice(stream, workspace, bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace) % 256, 0U);
    const auto layout = [](cublasLtMatrixLayout_t l) {
      return *Of<FakeLayout>(const_cast<void*>(static_cast<const void*>(l)));
    };
    EmulatedCuda::Enqueue(
        stream,
        [description = *Of<FakeDescription>(description), alpha = *static_cast<const float*>(alpha),
         a, first = layout(first), b, second = layout(second),
         beta = *static_cast<const float*>(beta), d, result = layout(result)] {
          MultiplyOnHost(description, alpha, a, first, b, second, beta, d, result);
          return cudaSuccess;
        });
    return CUBLAS_STATUS_SUCCESS;
  };
}

CublasLtApi FakeCublasLt() {
  CublasLtApi api;
  FakeHandles(api);
  FakeDescriptions(api);
  FakeLayouts(api);
  FakePreferences(api);
  FakeProducts(api);
  return api;
}

class CublasMathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake = {};
    auto device = CudaDevice::Make(cuda_.api(), {});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    scratch_ = std::make_unique<CudaScratch>(*device_);
    auto math = CublasMath::Make(FakeCublasLt(), *device_, *scratch_);
    ASSERT_TRUE(math.ok()) << math.status();
    math_ = *std::move(math);
  }
  void TearDown() override {
    math_.reset();
    EXPECT_EQ(fake.handles, 0);
    EXPECT_EQ(fake.objects, 0);
  }

  OnDevice Put(const Floats& values, DType type = DType::kFloat32) {
    return OnDevice(*device_, values, type);
  }

  EmulatedCuda cuda_{EmulatedCuda::Mode::kInline};
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaScratch> scratch_;
  std::unique_ptr<CublasMath> math_;
};

// x[4, 3] W[5, 3]^T + b, and the reference's result.
constexpr MatrixProductDims kForward{.m = 4, .n = 5, .k = 3, .transpose_b = true};

Floats ReferenceForward(const Floats& x, const Floats& w, const Floats& b) {
  Floats y(20);
  MakeReferenceBackend()->dense().FullyConnectedForward({.batch = 4, .in = 3, .out = 5}, x, w, b,
                                                        y);
  return y;
}

TEST_F(CublasMathTest, MultipliesAndAddsABias) {
  const Floats x = Eighths(12, 1), w = Eighths(15, 2), b = Eighths(5, 3);
  const auto dx = Put(x), dw = Put(w), db = Put(b), dy = Put(Garbage(20));
  math_->Multiply(kForward, /*tf32=*/false, dx.span(), dw.span(), db.span(), dy.span());
  EXPECT_EQ(dy.Get(), ReferenceForward(x, w, b));
  EXPECT_EQ(fake.compute, CUBLAS_COMPUTE_32F);
  math_->Multiply(kForward, /*tf32=*/true, dx.span(), dw.span(), db.span(), dy.span());
  EXPECT_EQ(fake.compute, CUBLAS_COMPUTE_32F_FAST_TF32);
}

// The library accepts only biases of the result's type.
TEST_F(CublasMathTest, BiasIsRoundedToTheTypeOfTheResult) {
  const Floats x = Eighths(12, 1), w = Eighths(15, 2), b = Eighths(5, 3);
  const auto dx = Put(x, DType::kBFloat16), dw = Put(w, DType::kBFloat16),
             dy = Put(Floats(20), DType::kBFloat16), db = Put(b);
  math_->Multiply(kForward, true, dx.values(), dw.values(), db.span(), dy.values());
  EXPECT_EQ(dy.Get(), Bf16Rounded(ReferenceForward(x, w, b)));
  // TF32 does not apply to bf16 factors.
  EXPECT_EQ(fake.compute, CUBLAS_COMPUTE_32F);
}

// Without a conversion for each product.
TEST_F(CublasMathTest, BiasOfTheTypeOfTheResultIsReadDirectly) {
  const Floats x = Eighths(12, 1), w = Eighths(15, 2), b = Eighths(5, 3);
  const auto dx = Put(x, DType::kBFloat16), dw = Put(w, DType::kBFloat16),
             dy = Put(Floats(20), DType::kBFloat16), narrow = Put(b, DType::kBFloat16),
             wide = Put(b);
  for (const ConstValues bias : {ConstValues(narrow.values()), ConstValues(wide.values())}) {
    const int64_t launches = cuda_.calls("launch");
    math_->Multiply(kForward, false, dx.values(), dw.values(), bias, dy.values());
    EXPECT_EQ(dy.Get(), Bf16Rounded(ReferenceForward(x, w, b)));
    EXPECT_EQ(cuda_.calls("launch") - launches, bias.type() == DType::kFloat32 ? 1 : 0);
  }
}

// Every orientation of the factors, with contiguous and with strided rows.
TEST_F(CublasMathTest, ColumnMajorProductsEqualRowMajorOnes) {
  const Floats a = Eighths(9 * 9, 1), b = Eighths(9 * 9, 2), bias = Eighths(5, 3);
  const auto da = Put(a), db = Put(b), dbias = Put(bias);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const bool strided : {false, true}) {
        MatrixProductDims d{
            .m = 3, .n = 5, .k = 4, .transpose_a = transpose_a, .transpose_b = transpose_b};
        if (strided) d.a_row = 9, d.b_row = 8, d.c_row = 7;
        const int64_t a_row = strided ? 9 : transpose_a ? d.m : d.k;
        const int64_t b_row = strided ? 8 : transpose_b ? d.k : d.n;
        const int64_t c_row = strided ? 7 : d.n;
        Floats want(d.m * c_row, 0.0F);
        const auto dc = Put(want);
        for (int64_t i = 0; i < d.m; ++i) {
          for (int64_t j = 0; j < d.n; ++j) {
            float& sum = want[i * c_row + j] = bias[j];
            for (int64_t k = 0; k < d.k; ++k) {
              sum += (transpose_a ? a[k * a_row + i] : a[i * a_row + k]) *
                     (transpose_b ? b[j * b_row + k] : b[k * b_row + j]);
            }
          }
        }
        math_->Multiply(d, false, da.values(), db.values(), dbias.span(), dc.values());
        EXPECT_EQ(dc.Get(), want) << transpose_a << transpose_b << strided;
      }
    }
  }
}

TEST_F(CublasMathTest, NestedBatchesTakeFewCalls) {
  // The scores of attention: 6 samples of 2 heads, 3 tokens of 4 features.
  const MatrixProductDims dims{.m = 3,
                               .n = 3,
                               .k = 4,
                               .transpose_b = true,
                               .a_row = 24,
                               .b_row = 24,
                               .batch = 2,
                               .a_step = 12,
                               .b_step = 12,
                               .c_step = 9,
                               .outer = 6,
                               .a_outer = 72,
                               .b_outer = 72,
                               .c_outer = 18};
  const Floats qkv = Eighths(6 * 72, 1);
  const auto x = Put(qkv), scores = Put(Garbage(6 * 18));
  math_->Multiply(dims, false, x.span(), x.span().subspan(4), {}, scores.span());
  EXPECT_EQ(fake.products, 2);
  const Floats got = scores.Get();
  for (int64_t sample = 0; sample < 6; ++sample) {
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < 3; ++j) {
          const float* q = qkv.data() + sample * 72 + i * 24 + head * 12;
          const float* k = qkv.data() + sample * 72 + j * 24 + head * 12 + 4;
          float sum = 0;
          for (int f = 0; f < 4; ++f) sum += q[f] * k[f];
          EXPECT_EQ(got[sample * 18 + head * 9 + i * 3 + j], sum);
        }
      }
    }
  }
}

TEST_F(CublasMathTest, PlansAreMadeOncePerAlignment) {
  const auto a = Put(Eighths(64, 1)), b = Put(Eighths(64, 2)), c = Put(Floats(64));
  const MatrixProductDims dims{.m = 4, .n = 4, .k = 4};
  const auto multiply = [&](size_t skip) {
    math_->Multiply(dims, false, a.span().subspan(skip, 16), b.span().first(16), {},
                    c.span().first(16));
  };
  multiply(0);
  multiply(0);
  EXPECT_EQ(fake.suggestions, 1);
  EXPECT_EQ(fake.alignments[1], 256U);
  multiply(1);
  EXPECT_EQ(fake.suggestions, 2);
  // The library's second factor is our first.
  EXPECT_EQ(fake.alignments[0], 256U);
  EXPECT_EQ(fake.alignments[1], 4U);
  EXPECT_EQ(fake.alignments[2], 256U);
  EXPECT_EQ(fake.products, 3);
}

// Others round partial sums to the type of the result, or add them in any order.
TEST_F(CublasMathTest, PartialSumsAreAddedInFp32) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
  EXPECT_EQ(fake.reductions, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
}

TEST_F(CublasMathTest, FirstAlgorithmThatWorksIsUsed) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  fake.states = {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_SUCCESS,
                 CUBLAS_STATUS_SUCCESS};
  math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
  EXPECT_EQ(c.Get(), Floats({11}));
  EXPECT_EQ(fake.algorithm, 2U);
}

TEST_F(CublasMathTest, NoAlgorithmThatWorksIsAnError) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  fake.states = {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE};
  math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
  EXPECT_EQ(fake.products, 0);
  EXPECT_THAT(std::string(device_->status().message()),
              HasSubstr("choice of an algorithm of matrix product"));
  EXPECT_TRUE(HasReason(device_->status(), kReasonNoPlan)) << device_->status();
}

TEST_F(CublasMathTest, EmptyListOfAlgorithmsIsAnError) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  fake.states = {};
  math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
  EXPECT_EQ(fake.products, 0);
  EXPECT_THAT(std::string(device_->status().message()), HasSubstr("it is not supported"));
  EXPECT_TRUE(HasReason(device_->status(), kReasonNoPlan)) << device_->status();
}

TEST_F(CublasMathTest, OtherErrorsOfTheChoiceAreNoLackOfAPlan) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  fake.suggestion = CUBLAS_STATUS_INTERNAL_ERROR;
  math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
  EXPECT_EQ(device_->status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(HasReason(device_->status(), kReasonNoPlan)) << device_->status();
}

// The device's error is the cause.
TEST_F(CublasMathTest, ChoiceOnALostDeviceIsNoLackOfAPlan) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  fake.suggestion = CUBLAS_STATUS_NOT_SUPPORTED;
  cuda_.Break(cudaErrorIllegalAddress);
  math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
  EXPECT_TRUE(device_->lost());
  EXPECT_THAT(std::string(device_->status().message()), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_FALSE(HasReason(device_->status(), kReasonNoPlan)) << device_->status();
}

TEST_F(CublasMathTest, ScalesByAlpha) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  math_->Multiply({.m = 1, .n = 1, .k = 2, .alpha = 0.5F}, false, a.span(), b.span(), {}, c.span());
  EXPECT_EQ(c.Get(), Floats({5.5F}));
}

TEST_F(CublasMathTest, CapturesNeedAPlanThatExists) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  const MatrixProductDims dims{.m = 1, .n = 1, .k = 2};
  const auto work = [&] {
    math_->Multiply(dims, false, a.span(), b.span(), {}, c.span());
    return device_->status();
  };
  // Without a plan and scratch memory the capture fails, and nothing runs.
  const auto refused = device_->CaptureGraph(work);
  EXPECT_TRUE(!refused.ok() || *refused == nullptr);
  ASSERT_TRUE(device_->status().ok()) << device_->status();
  EXPECT_EQ(c.Get(), Floats({100}));
  ASSERT_TRUE(work().ok());
  const auto recording = device_->CaptureGraph(work);
  ASSERT_TRUE(recording.ok()) << recording.status();
  ASSERT_NE(*recording, nullptr);
  const Floats other = {10, 20};
  device_->CopyIn(other.data(), a.span().data(), sizeof(float) * other.size());
  device_->LaunchGraph(**recording);
  EXPECT_EQ(c.Get(), Floats({110}));
}

// The work is then enqueued, and an error that remains is the device's.
TEST_F(CublasMathTest, LibraryErrorRefusesTheCaptureOnly) {
  const auto a = Put({1, 2}), b = Put({3, 4}), c = Put({100});
  const auto work = [&] {
    math_->Multiply({.m = 1, .n = 1, .k = 2}, false, a.span(), b.span(), {}, c.span());
    return device_->status();
  };
  ASSERT_TRUE(work().ok());
  for (const cublasStatus_t error :
       {CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_ALLOC_FAILED}) {
    fake.product = error;
    const auto refused = device_->CaptureGraph(work);
    ASSERT_TRUE(refused.ok()) << refused.status();
    EXPECT_EQ(*refused, nullptr);
    EXPECT_THAT(device_->capture_refusal(), HasSubstr("cuBLASLt: execution of matrix product"));
    ASSERT_TRUE(device_->status().ok()) << device_->status();
  }
  fake.product = CUBLAS_STATUS_SUCCESS;
  const auto recording = device_->CaptureGraph(work);
  ASSERT_TRUE(recording.ok() && *recording != nullptr) << recording.status();
  EXPECT_EQ(device_->capture_refusal(), "");
  fake.product = CUBLAS_STATUS_EXECUTION_FAILED;
  EXPECT_EQ(work().code(), absl::StatusCode::kInternal);
}

TEST_F(CublasMathTest, ErrorsNameTheProduct) {
  fake.suggestion = CUBLAS_STATUS_NOT_SUPPORTED;
  const auto a = Put(Floats(64)), c = Put(Floats(64));
  math_->Multiply({.m = 8, .n = 8, .k = 8}, true, a.span(), a.span(), {}, c.span());
  EXPECT_EQ(device_->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(HasReason(device_->status(), kReasonNoPlan)) << device_->status();
  EXPECT_THAT(std::string(device_->status().message()),
              HasSubstr("matrix product [8, 8] x [8, 8], batch 1, float32 (TF32) to float32"));
  EXPECT_THAT(std::string(device_->status().message()), HasSubstr("it is not supported"));
  // After the error, work does nothing.
  math_->Multiply({.m = 8, .n = 8, .k = 8}, false, a.span(), a.span(), {}, c.span());
  EXPECT_EQ(fake.suggestions, 1);
}

TEST_F(CublasMathTest, LackOfMemoryIsResourceExhausted) {
  fake.product = CUBLAS_STATUS_ALLOC_FAILED;
  const auto a = Put(Floats(64)), c = Put(Floats(64));
  math_->Multiply({.m = 8, .n = 8, .k = 8}, false, a.span(), a.span(), {}, c.span());
  EXPECT_EQ(device_->status().code(), absl::StatusCode::kResourceExhausted);
}

// --- scratch -----------------------------------------------------------------------------------

TEST_F(CublasMathTest, ScratchGrowsAndIsOnePerStream) {
  std::byte* const small = scratch_->Take(100);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(scratch_->Take(200), small);
  std::byte* const large = scratch_->Take(1 << 20);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(scratch_->Take(100), large);
  const OnStream on(*device_, Stream::kCommunication);
  EXPECT_NE(scratch_->Take(100), large);
}

// A captured graph keeps using its memory.
TEST_F(CublasMathTest, ScratchOfACaptureStays) {
  std::byte* const first = scratch_->Take(1 << 20);
  const auto recording = device_->CaptureGraph([&] {
    device_->Zero(scratch_->Take(1 << 20), 1 << 20);
    return absl::OkStatus();
  });
  ASSERT_TRUE(recording.ok() && *recording != nullptr);
  const int64_t before = device_->bytes_in_use();
  std::byte* const second = scratch_->Take(4 << 20);
  EXPECT_NE(second, first);
  EXPECT_GE(device_->bytes_in_use(), before + (4 << 20));
  device_->LaunchGraph(**recording);
  EXPECT_TRUE(device_->Synchronize().ok());
}

}  // namespace
}  // namespace cadre
