"""What people look at: texts, answers, pages and figures. Knows an answer only by the attributes that it shows."""
