#include "core/ops/embedding.h"

#include "core/kernels/embedding/args.h"

namespace mantissa {

Var embedding(Tape& tape, const Tensor& tokens, int64_t sequence_length, Parameter& token_table,
              Parameter* position_table, const Tensor& starts) {
  const int64_t rows = tokens.numel(), channels = token_table.shape[1];
  MANTISSA_CHECK(tokens.dtype() == DType::kI32, "[embedding] tokens must be i32, got {}", tokens.dtype());
  MANTISSA_CHECK(sequence_length > 0 && rows % sequence_length == 0,
                 "[embedding] {} tokens are not a whole number of sequences of {}", rows, sequence_length);
  MANTISSA_CHECK(position_table == nullptr ||
                     (position_table->shape[0] >= sequence_length && position_table->shape[1] == channels),
                 "[embedding] position table must be (>= {}, {}), got {}", sequence_length, channels,
                 position_table ? position_table->shape : Shape{});
  const DType given = token_table.working_dtype;
  const DType dtype =
      tape.compute_dtype(Op::kEmbedding, given, position_table ? widest(given, position_table->working_dtype) : given);
  Tensor y = tape.allocate(dtype, {rows, channels});
  tape.run(EmbeddingForwardArgs{.tokens = tokens,
                                .starts = starts,
                                .token_table = tape.weight(token_table),
                                .position_table = position_table ? tape.weight(*position_table) : Tensor(),
                                .y = y,
                                .sequence_length = sequence_length});
  return tape.record(Op::kEmbedding, y, {}, {&token_table, position_table},
                     [tokens, starts, sequence_length, &token_table, position_table](Tape& t, Tensor dy) {
                       const GradientTarget token = t.gradient_target(token_table);
                       EmbeddingBackwardArgs args{.tokens = tokens,
                                                  .starts = starts,
                                                  .dy = dy,
                                                  .d_token_table = token.tensor,
                                                  .sequence_length = sequence_length,
                                                  .token_mode = token.mode};
                       if (position_table) {
                         const GradientTarget position = t.gradient_target(*position_table);
                         args.d_position_table = position.tensor;
                         args.position_mode = position.mode;
                       }
                       t.run(args);
                     });
}

}  // namespace mantissa
