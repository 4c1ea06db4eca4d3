module llm

go 1.26.0

require (
	github.com/sashabaranov/go-openai v1.43.0
	starling v0.0.0
)

replace starling => ../../../..
